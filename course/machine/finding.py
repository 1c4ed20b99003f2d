"""What a check of `course doctor` found: one line, green, yellow or red, with the remedy."""

from dataclasses import dataclass

GREEN, YELLOW, RED = "green", "yellow", "red"
CODES = {GREEN: "\x1b[32m", YELLOW: "\x1b[33m", RED: "\x1b[31m"}


@dataclass
class Finding:
    colour: str
    topic: str
    text: str
    remedy: str = ""

    def line(self, terminal: bool) -> str:
        mark = f"{CODES[self.colour]}●\x1b[0m" if terminal else f"{self.colour:6}"
        return f"{mark} {self.topic:12} {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def green_if(fine: bool, topic: str, text: str, remedy: str, otherwise: str = YELLOW) -> Finding:
    """Green, or the other colour with what to do about it."""
    return Finding(GREEN, topic, text) if fine else Finding(otherwise, topic, text, remedy)

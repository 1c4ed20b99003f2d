"""data/stories.txt, from which chapter 01 learns its tokens, is what chapter 02's grammar tells."""

from course.paths import ROOT
from nanogpt.labs.corpora.stories import stories

STORIES = ROOT / "data/stories.txt"


def test_the_file_holds_the_first_stories_of_the_generated_corpus():
    """The tokens of every later chapter are learned from the first 5,000, whether from this file or from the grammar."""
    told = [story.text for story in stories(5500, seed=0)]
    assert STORIES.read_bytes() == "".join(text + "\n" for text in told).encode()

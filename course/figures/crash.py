"""A disk that may crash: what a file can hold afterwards (exercise 17-2)."""

TORN = "(torn)"


class Disk:
    """A folder of files. `done` is what was asked of it, and `after_crash(name)` all that may then be read there.

    Contents that were written are certain when they are flushed, and before that anything may be left of them. Changes of names are
    certain when names are flushed; before that the first so many of them may have reached the disk (Pillai et al. 2014, §2).
    """

    def __init__(self, **files: str):
        self.done = []
        self.contents = [{text} for text in files.values()]  # of each file: what a crash may leave of it
        self.written = [*files.values()]  # what is read without a crash
        self.tables = [
            dict(zip(files, range(len(files))))
        ]  # names: the certain ones, and after each later change

    def write(self, name: str, text: str) -> None:
        """Contents of a file, new or in place of its old ones."""
        self.done.append(["write", name, text])
        names = self.tables[-1]
        if name not in names:
            self.contents.append(set())
            self.written.append("")
            self.tables.append(names | {name: len(self.contents) - 1})
        file = self.tables[-1][name]
        self.contents[file] |= {TORN, text}
        self.written[file] = text

    def flush(self, name: str) -> None:
        """Wait until a file's contents are on the disk."""
        self.done.append(["flush", name])
        file = self.file(name)
        self.contents[file] = {self.written[file]}

    def rename(self, old: str, new: str) -> None:
        """The file gets another name; what had that name before is gone."""
        self.done.append(["rename", old, new])
        file, names = self.file(old), {name: file for name, file in self.tables[-1].items() if name != old}
        self.tables.append(names | {new: file})

    def flush_names(self) -> None:
        """Wait until the folder's list of names is on the disk."""
        self.done.append(["flush_names"])
        self.tables = self.tables[-1:]

    def file(self, name: str) -> int:
        """Which of the contents has this name now."""
        if name not in self.tables[-1]:
            raise FileNotFoundError(f"{name!r} is not in the folder, which holds {self.names() or 'nothing'}")
        return self.tables[-1][name]

    def names(self) -> list[str]:
        return sorted(self.tables[-1])

    def after_crash(self, name: str) -> list[str]:
        """All that may be read under a name if the power fails now; "" stands for no file."""
        files = [names.get(name) for names in self.tables]
        return sorted(set().union(*({""} if file is None else self.contents[file] for file in files)))

"""Runs the sections of a probe, and prints what each said.

Commands have a process each. Functions share two, the lanes, because a process of the interpreter
costs more than what most of them do: the functions of a lane run one after the other, and one that
does not end in time ends its lane.
"""

import os
import select
import sys
import time

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Section = tuple[str, Callable[..., None] | None, tuple[Any, ...], float, float]
    """Lane, function (None for a command of a shell), arguments, deadline, seconds to the next."""

MOST = 4 << 20  # bytes of what a section says that are passed on
TIMED_OUT = 137


class Stream:
    """Where a function of a lane prints to: what it says goes out with its name."""

    def __init__(self, name: str) -> None:
        self.name, self.pieces = name, [""]

    def write(self, text: str) -> int:
        """Take a piece of text."""
        self.pieces.append(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        self.send("", "".join(self.pieces), "")
        self.pieces = []

    def send(self, status: str, out: str, err: str) -> None:
        """Pass on output and errors, and how the function has ended, if it has."""
        line = memoryview(
            "\t".join([self.name, status, escaped(out), escaped(err)]).encode() + b"\n"
        )
        while line:
            line = line[os.write(1, line) :]


class Job:
    """A process with sections of the probe.

    Args:
        names: its sections, in the order in which they run.
    """

    def __init__(self, names: "list[str]", sections: "Mapping[str, Section]") -> None:
        began = time.monotonic()
        self.names = names
        self.ends = {name: began + sections[name][3] for name in names}
        self.said = {name: [b"", b""] for name in names}
        self.rest = b""
        (self.out, theirs), (self.err, errors) = os.pipe(), os.pipe()
        self.lane = sections[names[0]][1] is not None
        nothing = os.open(os.devnull, os.O_RDONLY)
        ends = [(nothing, 0), (theirs, 1), (errors, 2)]
        if self.lane:
            self.pid = os.fork()
            if not self.pid:
                run(names, sections, ends)
            try:  # noqa: SIM105 - contextlib is slow to import
                os.setpgid(self.pid, self.pid)  # whoever comes first: it can be killed from here on
            except OSError:
                pass
        else:
            argv = ["sh", "-c", sections[names[0]][2][0]]
            actions = [(os.POSIX_SPAWN_DUP2, own, end) for own, end in ends]
            self.pid = os.posix_spawnp("sh", argv, os.environ, file_actions=actions, setpgroup=0)
        for own, _ in ends:
            os.close(own)
        self.pipes = {self.out, self.err}
        self.status: dict[str, int] = {}

    def now(self) -> str:
        """The section that runs."""
        return next((name for name in self.names if name not in self.status), self.names[-1])

    def read(self, pipe: int) -> None:
        """Take in what has come."""
        piece = os.read(pipe, 65536)
        if not piece:
            os.close(pipe)
            self.pipes.discard(pipe)
        elif self.lane and pipe == self.out:
            *lines, self.rest = (self.rest + piece).split(b"\n")
            for line in lines:
                name, status, out, err = line.split(b"\t")
                self.add(name.decode(), out, err)
                if status:
                    self.status[name.decode()] = int(status)
        elif pipe == self.out:
            self.add(self.now(), piece, b"")
        else:
            err = escaped(piece.decode("utf-8", "replace")).encode() if self.lane else piece
            self.add(self.now(), b"", err)

    def add(self, name: str, out: bytes, err: bytes) -> None:
        """Note what a section has said."""
        before = self.said[name]
        self.said[name] = [(before[0] + out)[:MOST], (before[1] + err)[:MOST]]

    def end(self) -> None:
        """Give it up: it may be stuck in the kernel, and hear of nothing."""
        self.status[self.now()] = TIMED_OUT
        os.killpg(self.pid, 9)
        for pipe in self.pipes:
            os.close(pipe)
        self.pipes = set()
        self.pid = 0

    def close(self) -> "dict[str, tuple[int, str, str]]":
        """Status, output and errors of each section of which they are known, escaped."""
        if self.pid:
            ended = os.waitpid(self.pid, 0)[1]
            if not self.lane or ended:  # a lane that was killed by somebody else
                self.status.setdefault(self.now(), ended >> 8 or ended & 127)
        found = {}
        for name, status in self.status.items():
            out, err = self.said[name]
            found[name] = (status, self.text(out), self.text(err))
        return found

    def text(self, words: bytes) -> str:
        """What was said, escaped; a lane escapes by itself."""
        text = words.decode("utf-8", "replace")
        return text if self.lane else escaped(text)


def escaped(text: str) -> str:
    """The same in printable ASCII."""
    return ascii(text)[1:-1]


def run(
    names: "list[str]", sections: "Mapping[str, Section]", ends: "Iterable[tuple[int, int]]"
) -> None:
    """Be the process of a lane."""
    try:
        os.setpgid(0, 0)
        for theirs, end in ends:
            os.dup2(theirs, end)
        for name in names:
            stream: Any = Stream(name)
            sys.stdout = stream
            tell, words = sections[name][1:3]
            status, err = "0", ""
            try:
                if tell is not None:
                    tell(*words)
            except BaseException as error:  # noqa: BLE001 - that is what the section said
                status, err = "1", repr(error) + "\n"
            stream.flush()
            stream.send(status, "", err)
    finally:
        os._exit(0)


def look(
    sections: "Mapping[str, Section]", names: "Iterable[str]"
) -> "dict[str, tuple[int, str, str]]":
    """Run the sections `names`: exit status, output and errors of each."""
    lanes: dict[tuple[str, str], list[str]] = {}
    for name in names:
        lane = sections[name][0]
        lanes.setdefault((lane, "" if lane else name), []).append(name)
    jobs = [Job(together, sections) for together in lanes.values()]
    while True:
        open_ones = {pipe: job for job in jobs for pipe in job.pipes}
        if not open_ones:
            break
        left = min(job.ends[job.now()] for job in open_ones.values()) - time.monotonic()
        for pipe in select.select(list(open_ones), [], [], max(left, 0))[0]:
            open_ones[pipe].read(pipe)
        for job in jobs:
            if job.pipes and time.monotonic() >= job.ends[job.now()]:
                job.end()
    found: dict[str, tuple[int, str, str]] = {}
    for job in jobs:
        found.update(job.close())
    return found


def probe(sections: "Mapping[str, Section]", pause: "float | None") -> None:
    """Print what all sections say: a line each, and an empty one at the end.

    Args:
        sections: by name.
        pause: seconds until all is printed anew; None for once only.
    """
    seen: dict[str, tuple[int, str, str]] = {}
    asked: dict[str, float] = {}
    while True:
        now = time.monotonic()
        due = [name for name in sections if now - asked.get(name, -1e9) >= sections[name][4]]
        asked.update(dict.fromkeys(due, now))
        seen = {name: said for name, said in seen.items() if name not in due}
        seen.update(look(sections, due))
        for name, (status, out, err) in seen.items():
            print(name, status, out, err, sep="\t")
        print(flush=True)
        if pause is None:
            os._exit(0)  # without taking the interpreter down, which takes a while
        time.sleep(pause)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # jobs that were killed
        except ChildProcessError:
            pass

"""One probe for a host: all facts from one command that prints one document.

Its sections run side by side, each bounded by its own deadline, so that a tool stuck in the kernel
(`nvidia-smi` on a lost GPU) holds nothing up: that it hangs is what the section reports. The caller
bounds the whole command as well.

An interpreter on the host runs them, once or again and again: most are functions of
`ddtreectl.on_host`, because starting a program costs more than what such a section does. It prints
a line for each section, with what is no printable ASCII escaped, and an empty line at the end.

On a host without an interpreter, a POSIX shell does the same for those sections that it has a
command for, once, and prints what `head -v` makes of their files: the name of their folder, in the
first line, is one that no content can have guessed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from ddtreectl.facts.output import Output, as_int, unescaped
from ddtreectl.on_host import program

MOST = 4 << 20
"""Bytes of one section that are passed on."""

_PROLOGUE = r"""
d=$(mktemp -d) || exit 1
trap 'rm -rf "$d"' EXIT
section() {
  ( timeout -s KILL "$2" sh -c "$3" >"$d/$1.out" 2>"$d/$1.err" </dev/null
    echo $? >"$d/$1.rc" ) 2>/dev/null &
}
"""

_EPILOGUE = rf"""
wait
echo "$d"
head -v -c {MOST} "$d"/*
"""


@dataclass(frozen=True)
class Call:
    """A function of `ddtreectl.on_host`.

    Attributes:
        module: the module that has it.
        function: its name.
        words: its arguments, as values that Python has literals for.
        lane: those with the same run one after the other, in one process.
        needs: modules that this one imports.
    """

    module: str
    function: str
    words: tuple[object, ...] = ()
    lane: str = "quick"
    needs: tuple[str, ...] = ()

    def argv(self, python: str) -> list[str]:
        """The command that does this alone, with `python`."""
        text = program(*self.needs, self.module)
        return [python, "-IS", "-c", f"{text}\n{self.function}(*{self.words!r})"]


@dataclass(frozen=True)
class Section:
    """One part of the probe.

    Attributes:
        command: shell text; empty where no shell can do it.
        deadline: seconds until it is killed.
        call: what does the same where there is an interpreter; None where a shell does it as well.
        every: seconds between two runs, where the probe goes on.
    """

    command: str
    deadline: float = 5.0
    call: Call | None = None
    every: float = 0.0


def argv(sections: Mapping[str, Section], python: str, pause: float | None = None) -> list[str]:
    """The command that runs `sections` once, or with a pause of so many seconds again and again.

    Args:
        sections: by name.
        python: the interpreter of the host.
        pause: None for once.
    """
    calls = [section.call for section in sections.values() if section.call]
    modules = [name for call in calls for name in (*call.needs, call.module)]
    told = [
        f"{name!r}: ({call.lane!r}, {call.function}, {call.words!r}, {s.deadline!r}, {s.every!r})"
        if (call := s.call)
        else f"{name!r}: ('', None, {(s.command,)!r}, {s.deadline!r}, {s.every!r})"
        for name, s in sections.items()
    ]
    text = program("sections", *dict.fromkeys(modules))
    return [python, "-IS", "-c", f"{text}\nprobe({{{', '.join(told)}}}, {pause!r})"]


def script(sections: Mapping[str, Section]) -> str:
    """The shell script that runs those of `sections` that a shell can."""
    calls = [
        f"section {name} {section.deadline:g} {quote(section.command)}"
        for name, section in sections.items()
        if section.command
    ]
    return "\n".join([_PROLOGUE.strip(), *calls, _EPILOGUE.strip(), ""])


def deadline(sections: Mapping[str, Section]) -> float:
    """Seconds after which the whole script must have ended."""
    return max(section.deadline for section in sections.values()) + 10.0


def parse(document: str) -> dict[str, Output]:
    """The output of each section; sections of which it is not said how they ended are absent."""
    if document.startswith("/"):
        return _of_files(document)
    found = {}
    for line in document.split("\n"):
        name, *cells = line.split("\t")
        if len(cells) == 3 and (status := as_int(cells[0])) is not None:
            found[name] = Output(status, unescaped(cells[1]), unescaped(cells[2])[:4000])
    return found


def _of_files(document: str) -> dict[str, Output]:
    folder, _, rest = document.partition("\n")
    heading = re.compile(rf"(?:\n|\A)==> {re.escape(folder)}/(\w+)\.(out|err|rc) <==\n")
    parts = heading.split(rest)
    found: dict[str, dict[str, str]] = {}
    for name, kind, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found.setdefault(name, {})[kind] = text
    return {
        name: Output(status, files.get("out", ""), files.get("err", "")[:4000])
        for name, files in found.items()
        if (status := as_int(files.get("rc", ""))) is not None
    }

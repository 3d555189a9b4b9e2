"""One probe for a host: all facts from one script that prints one document.

The script is POSIX shell. Its sections run side by side, each bounded by its own deadline and with
its output in a file, so that a tool stuck in the kernel (`nvidia-smi` on a lost GPU) holds nothing
up: that it hangs is what the section reports. The caller bounds the whole script as well.

Sections in Python share one interpreter, forked for each of them: on a host its start costs more
than what such a section does. The document is what `head -v` makes of the files, with the name of
their folder in the first line: a name that no content can have guessed separates them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from ddtreectl.facts.output import TIMED_OUT, Output, as_int

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

_RUNNER = f"""
import json, os, signal, socket, sys, time
sections, folder, children = json.loads(sys.argv[1]), sys.argv[2], {{}}
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
for name, (code, deadline) in sections.items():
    pid = os.fork()
    if pid:
        children[pid] = (name, time.monotonic() + deadline)
        continue
    status = 0
    try:
        for number, end in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(folder + "/" + name + end, os.O_WRONLY | os.O_CREAT), number)
        exec(code, {{}})
    except BaseException as error:
        status = 1
        print(repr(error), file=sys.stderr)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
def ended(name, status):
    with open(folder + "/" + name + ".rc", "w") as file:
        print(status, file=file)
while children:
    left = min(deadline for _, deadline in children.values()) - time.monotonic()
    signal.sigtimedwait([signal.SIGCHLD], max(left, 0))
    for pid, (name, deadline) in list(children.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            ended(name, status >> 8 or status & 127)
        elif time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            ended(name, {TIMED_OUT})
        else:
            continue
        del children[pid]
"""


@dataclass(frozen=True)
class Section:
    """One part of the probe.

    Attributes:
        command: shell text, or where `python` is named, Python text.
        deadline: seconds until it is killed.
        python: the interpreter that runs it, for Python text.
    """

    command: str
    deadline: float = 5.0
    python: str | None = None


def script(sections: Mapping[str, Section]) -> str:
    """The shell script that runs `sections` and prints what each said."""
    calls = [
        f"section {name} {section.deadline:g} {quote(section.command)}"
        for name, section in sections.items()
        if section.python is None
    ]
    for python in sorted({s.python for s in sections.values() if s.python is not None}):
        own = {n: s for n, s in sections.items() if s.python == python}
        words = [python, "-IS", "-c", _RUNNER, _json(own)]
        calls.append(f'{" ".join(quote(word) for word in words)} "$d" 2>/dev/null &')
    return "\n".join([_PROLOGUE.strip(), *calls, _EPILOGUE.strip(), ""])


def _json(sections: Mapping[str, Section]) -> str:
    return json.dumps({name: [s.command, s.deadline] for name, s in sections.items()})


def deadline(sections: Mapping[str, Section]) -> float:
    """Seconds after which the whole script must have ended."""
    return max(section.deadline for section in sections.values()) + 10.0


def parse(document: str) -> dict[str, Output]:
    """The output of each section; sections of which it is not said how they ended are absent."""
    folder, _, rest = document.partition("\n")
    if not folder.startswith("/"):
        return {}
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

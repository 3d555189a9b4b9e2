"""One probe for a host: all facts from one script that prints one document.

Its sections run side by side, each bounded by its own deadline, so that a tool stuck in the kernel
(`nvidia-smi` on a lost GPU) holds nothing up: that it hangs is what the section reports. The caller
bounds the whole script as well.

An interpreter on the host starts the sections and forks itself for those in Python, because its
start costs more than what such a section does. It prints one JSON document in a line, once or again
and again. On a host without one, a POSIX shell does the same for the other sections, once, and
prints what `head -v` makes of their files: the name of their folder, in the first line, is one that
no content can have guessed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from ddtreectl.facts.output import TIMED_OUT, Output, as_int, json_object

MOST = 4 << 20
"""Bytes of one section that are passed on."""

_DRIVER = f"""
import json, os, select, socket, sys, time
sections, pause = json.loads(sys.argv[1]), json.loads(sys.argv[2])
nothing = os.open(os.devnull, os.O_RDONLY)
def start(code, in_python):
    (out, own_out), (err, own_err) = os.pipe(), os.pipe()
    ends = [(nothing, 0), (own_out, 1), (own_err, 2)]
    if in_python:
        pid = os.fork()
        if not pid:
            run(code, ends)
    else:
        pid = os.posix_spawnp("sh", ["sh", "-c", code], os.environ, setpgroup=0,
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs, end) for theirs, end in ends])
    os.close(own_out)
    os.close(own_err)
    return pid, out, err
def run(code, ends):
    status = 1
    try:
        os.setpgid(0, 0)
        for theirs, end in ends:
            os.dup2(theirs, end)
        exec(code, {{}})
        status = 0
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
def look(names):
    pids, ends, pipes, said, status = {{}}, {{}}, {{}}, {{}}, {{}}
    for name in names:
        code, deadline, in_python, _ = sections[name]
        pids[name], out, err = start(code, in_python)
        pipes[out], pipes[err] = (name, 0), (name, 1)
        said[name], ends[name] = [b"", b""], time.monotonic() + deadline
    while pipes:
        left = min(ends[name] for name, _ in pipes.values()) - time.monotonic()
        ready = select.select(list(pipes), [], [], max(left, 0))[0]
        for pipe in ready:
            piece = os.read(pipe, 65536)
            name, number = pipes[pipe]
            said[name][number] = (said[name][number] + piece)[:{MOST}]
            if not piece:
                os.close(pipe)
                del pipes[pipe]
        for pipe, (name, _) in list(pipes.items()):
            if time.monotonic() < ends[name]:
                continue
            if name not in status:
                status[name] = {TIMED_OUT}
                os.killpg(pids[name], 9)
            os.close(pipe)
            del pipes[pipe]
    for name in names:
        if name not in status:
            ended = os.waitpid(pids[name], 0)[1]
            status[name] = ended >> 8 or ended & 127
    return {{
        name: [status[name], *(text.decode("utf-8", "replace") for text in said[name])]
        for name in names
    }}
seen, asked = {{}}, {{}}
while True:
    due = [n for n in sections if time.monotonic() - asked.get(n, -1e9) >= sections[n][3]]
    asked.update(dict.fromkeys(due, time.monotonic()))
    seen.update(look(due))
    print(json.dumps(seen), flush=True)
    if pause is None:
        break
    time.sleep(pause)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""

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
class Section:
    """One part of the probe.

    Attributes:
        command: shell text, or Python text.
        deadline: seconds until it is killed.
        in_python: which of them.
        every: seconds between two runs, where the probe goes on.
    """

    command: str
    deadline: float = 5.0
    in_python: bool = False
    every: float = 0.0


def script(sections: Mapping[str, Section], python: str) -> str:
    """The shell script that runs `sections` and prints what each said.

    Args:
        sections: by name.
        python: the interpreter of the host, if there is one.
    """
    driver = " ".join(quote(word) for word in driver_argv(sections, python))
    calls = [
        f"section {name} {section.deadline:g} {quote(section.command)}"
        for name, section in sections.items()
        if not section.in_python
    ]
    return "\n".join([f"{driver} && exit", _PROLOGUE.strip(), *calls, _EPILOGUE.strip(), ""])


def driver_argv(
    sections: Mapping[str, Section], python: str, pause: float | None = None
) -> list[str]:
    """The command that runs `sections` once, or with a pause of so many seconds again and again.

    It prints a document in each line.
    """
    told = {n: [s.command, s.deadline, s.in_python, s.every] for n, s in sections.items()}
    return [python, "-IS", "-c", _DRIVER, json.dumps(told), json.dumps(pause)]


def deadline(sections: Mapping[str, Section]) -> float:
    """Seconds after which the whole script must have ended."""
    return max(section.deadline for section in sections.values()) + 10.0


def parse(document: str) -> dict[str, Output]:
    """The output of each section; sections of which it is not said how they ended are absent."""
    if document.startswith("/"):
        return _of_files(document)
    return {
        name: Output(status, str(entry[1]), str(entry[2])[:4000])
        for name, entry in json_object(document).items()
        if isinstance(entry, list) and len(entry) == 3 and (status := as_int(entry[0])) is not None
    }


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

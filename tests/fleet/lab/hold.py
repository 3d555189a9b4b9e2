"""Stop a command on a host when it is about to run, so that something can happen meanwhile.

A script in /usr/local/bin takes the place of the program, as that folder comes first in PATH. A
call whose arguments match waits there until it is released; all others go on to the program.
"""

import contextlib
import os
import secrets
import select
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.fleet.lab.shell import LabError

_SCRIPT = """#!/bin/sh
case "$*" in
  *{match}*)
    [ -p {go} ] || exec {program} "$@"  # the host has booted since
    {stubborn}
    echo "$$ $*" >{reached}
    {{ read -r _ <{go}; }} 2>/dev/null
    ;;
esac
exec {program} "$@"
"""


class Hold:
    """A program whose next matching call is held.

    Args:
        find_root: finds the host's `/` among this machine's paths; LabError while it is down.
        program: its name, found in /usr/bin or /usr/sbin.
        match: text that its arguments, joined by blanks, contain.
        stubborn: whether it ignores SIGTERM, SIGINT and SIGHUP while it is held.
    """

    def __init__(
        self,
        find_root: Callable[[], Path],
        program: str,
        match: str = "",
        *,
        stubborn: bool = False,
    ) -> None:
        root = find_root()
        found = [f for f in ("/usr/bin", "/usr/sbin") if (root / f[1:] / program).exists()]
        if not found:
            raise LabError(f"the host has no `{program}`")
        name = f"hold-{secrets.token_hex(4)}"
        self.what = f"`{program} … {match}`"
        self._reached, self._go = (root / "run" / f"{name}.{end}" for end in ("reached", "go"))
        self._find_root = find_root
        self._place = Path("usr/local/bin", program)
        for pipe in (self._reached, self._go):
            os.mkfifo(pipe)
            pipe.chmod(0o666)
        # Both ends, so that who is held neither waits for a reader nor sees an end too early; when
        # this process dies, the pipe ends, and the command goes on.
        self._hits = os.open(self._reached, os.O_RDWR | os.O_NONBLOCK)
        self._releases = os.open(self._go, os.O_RDWR | os.O_NONBLOCK)
        script = root / self._place
        fresh = script.with_suffix(".new")
        fresh.write_text(
            _SCRIPT.format(
                match=shlex.quote(match),
                stubborn="trap '' TERM INT HUP" if stubborn else ":",
                reached=f"/run/{name}.reached",
                go=f"/run/{name}.go",
                program=f"{found[0]}/{program}",
            )
        )
        fresh.chmod(0o755)
        fresh.replace(script)
        self._installed = True

    def reached(self, deadline: float = 30.0) -> str:
        """Wait until a call is held; its process id on the host and its arguments.

        From then on calls go through, except this one, and those that are held already.
        """
        readable, _, _ = select.select([self._hits], [], [], deadline)
        if not readable:
            raise LabError(f"not called within {deadline:g} s: {self.what}")
        self._remove_script()
        return os.read(self._hits, 4096).decode().splitlines()[0]

    def release(self) -> None:
        """Let whoever is held go on. Calls that come later are not held."""
        self._remove_script()
        if self._releases >= 0:
            with contextlib.suppress(OSError):
                os.write(self._releases, b"\n" * 64)
            # In this order: who opens the pipe now finds either what was written, or no pipe.
            for path in (self._reached, self._go):
                with contextlib.suppress(OSError):
                    path.unlink()
            for pipe in (self._releases, self._hits):
                os.close(pipe)
            self._releases = self._hits = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _remove_script(self) -> None:
        """Once: what is in its place afterwards is another one's."""
        if not self._installed:
            return
        self._installed = False
        with contextlib.suppress(OSError, LabError):  # the host may be down, or installed anew
            (self._find_root() / self._place).unlink()

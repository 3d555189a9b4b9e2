"""Keeps an operator who has lost the lock of a host from doing anything more there.

Every command that runs under a lock looks for it first, on the host and at the moment that it
starts, and carries the lock's token in its environment. So a command that comes late finds that the
lock is another's, and one that hangs is found and ended by whoever takes over: neither can stop a
service that has come back meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from ddtreectl.errors import LockedError

VARIABLE = "DDTREECTL_LOCK"
LOST = 76
_SAID = "ddtreectl-fenced"
_SCRIPT = f'grep -qsF -e "$1" "$2" || {{ echo {_SAID} >&2; exit {LOST}; }}; shift 3; exec "$@"'


@dataclass
class Fence:
    """The lock that commands need to have.

    Attributes:
        token: names this lock and no other.
        path: the lock file on the host.
        doing: what the operator is at; seen in the command lines on the host.
    """

    token: str
    path: str
    doing: str = "look"

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` if the lock is still held."""
        script = ["sh", "-c", _SCRIPT, "ddtreectl-step", self.token, self.path, self.doing]
        return ["env", f"{VARIABLE}={self.token}", *script, *argv]

    def check(self, name: str, status: int, stderr: bytes) -> None:
        """Make sure that a wrapped command on the host `name` was let through.

        Raises:
            LockedError: the lock is another's.
        """
        if status == LOST and _SAID.encode() in stderr:
            raise self.lost(name)

    def lost(self, name: str) -> LockedError:
        """The error for a lock that was lost."""
        return LockedError(
            f"the lock of `{name}` is no longer this command's",
            cause="another operator broke it or took it over, or the host has returned to its last "
            "good generation by itself",
            hint=f"see `ddtreectl status {name}` and `ddtreectl audit {name}`",
        )


def end_commands(token: str) -> str:
    """Shell text that ends the commands which still run under a lock, but for its own shell."""
    mark = quote(f"{VARIABLE}={token}")
    return (
        f"for f in $(grep -lzxF -e {mark} /proc/[0-9]*/environ 2>/dev/null); do "
        'p=${f#/proc/}; p=${p%/environ}; [ "$p" = $$ ] || kill -KILL "$p" 2>/dev/null; done'
    )

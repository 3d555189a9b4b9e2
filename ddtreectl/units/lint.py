"""Checks a unit with `systemd-analyze verify`: any word of it is a failure.

It exits 0 on most mistakes (an unknown key, a value that does not parse) and only says "ignoring",
so silence is the one good answer.
"""

from shlex import quote

NOT_INSTALLED = 127
"""Exit status where the host has no systemd-analyze: nothing was checked."""


def command(staged: str) -> list[str]:
    """Verify the unit file at `staged`; hosts without systemd-analyze say so with status 127."""
    verify = f"SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no {quote(staged)} 2>&1"
    return ["sh", "-c", f"command -v systemd-analyze >/dev/null || exit {NOT_INSTALLED}; {verify}"]


def complaints(returncode: int, said: str) -> str:
    """What is wrong with the unit; empty where nothing is."""
    text = said.strip()
    if returncode == NOT_INSTALLED:
        return ""
    if not text and returncode != 0:
        return f"systemd-analyze exit status {returncode}"
    return text

"""Host keys: what known_hosts says of a host, and what to do about the key that it shows.

Read here and not by Paramiko, whose reader takes quadratic time for hashed files and whose check
knows one key a host.
"""

import base64
import binascii
import hmac
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha1, sha256
from pathlib import Path
from shlex import quote

from ddtreectl.errors import UnreachableError
from ddtreectl.hosts.destination import Destination

REVOKED, AUTHORITY = "@revoked", "@cert-authority"


class HostKeyError(UnreachableError):
    """The host does not show the key that it should, so nothing was sent to it."""


@dataclass(frozen=True)
class Known:
    """One line of known_hosts.

    Attributes:
        file: where it stands.
        line: its number.
        marker: `@revoked`, `@cert-authority` or nothing.
        names: patterns of names, or one hashed name.
        kind: type of the key.
        blob: the public key.
    """

    file: Path
    line: int
    marker: str
    names: str
    kind: str
    blob: bytes

    def __str__(self) -> str:
        """How messages show it."""
        return f"{self.kind} {fingerprint(self.blob)} ({self.file}:{self.line})"


def fingerprint(blob: bytes) -> str:
    """The fingerprint of a public key as OpenSSH prints it."""
    return f"SHA256:{base64.b64encode(sha256(blob).digest()).decode().rstrip('=')}"


def known(destination: Destination) -> list[Known]:
    """The lines that known_hosts has about a host."""
    return [
        entry
        for file in destination.known_hosts
        for entry in _entries(file)
        if named(entry.names, destination.filed_under)
    ]


def named(patterns: str, name: str) -> bool:
    """Whether a name is meant by the first field of a line."""
    if patterns.startswith("|1|"):
        salt, _, digest = patterns[3:].partition("|")
        try:
            made = hmac.digest(base64.b64decode(salt), name.encode(), sha1)
            return hmac.compare_digest(made, base64.b64decode(digest))
        except (binascii.Error, ValueError):
            return False
    found = False
    for pattern in patterns.lower().split(","):
        # `[` begins a port in known_hosts and a set in fnmatch
        if fnmatchcase(name.lower(), pattern.lstrip("!").replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _entries(file: Path) -> tuple[Known, ...]:
    try:
        state = file.stat()
    except OSError:
        return ()
    return _read(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _read(file: Path, changed: int, size: int) -> tuple[Known, ...]:
    del changed, size  # part of the key: a changed file is read again
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return ()
    return tuple(_parse(file, text))


def _parse(file: Path, text: str) -> Iterator[Known]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield Known(file, number, marker, words[0], words[1], blob)


def judge(destination: Destination, kind: str, blob: bytes, *, accept_new: bool) -> None:
    """Accept the key that a host shows, or refuse it.

    Args:
        destination: the host.
        kind: type of its key.
        blob: its public key.
        accept_new: whether the key of a host that nothing is known of is added to known_hosts.

    Raises:
        HostKeyError: the key is not the one that is known, or none is known.
    """
    entries = known(destination)
    name, shown = destination.filed_under, f"{kind} {fingerprint(blob)}"
    revoked = [e for e in entries if e.marker == REVOKED and e.blob == blob]
    plain = [e for e in entries if not e.marker]
    if revoked:
        raise HostKeyError(
            f"the host key of `{name}` is revoked",
            cause=f"revoked: {revoked[0]}",
            hint="make a new host key on the host, and remove the old one's lines",
        )
    if any(entry.blob == blob for entry in plain):
        return
    if plain:
        raise _changed(name, plain, shown)
    if not accept_new:
        raise _unknown(destination, shown, entries)
    _add(destination, kind, blob)


def _changed(name: str, plain: Sequence[Known], shown: str) -> HostKeyError:
    files = dict.fromkeys(entry.file for entry in plain)
    forget = " && ".join(f"ssh-keygen -R {_quoted(name)} -f {quote(str(f))}" for f in files)
    lines = [*(f"known:   {entry}" for entry in plain), f"offered: {shown}"]
    return HostKeyError(
        f"the host key of `{name}` has changed",
        cause="\n".join(lines),
        hint="if the host was installed anew, compare the offered fingerprint at its console "
        f"(`ssh-keygen -lf /etc/ssh/ssh_host_…_key.pub`), then forget the old key: {forget}",
    )


def _unknown(destination: Destination, shown: str, entries: Sequence[Known]) -> HostKeyError:
    name = destination.filed_under
    files = ", ".join(str(file) for file in destination.known_hosts) or "no file"
    cause = f"offered: {shown}\nlooked in: {files}"
    if any(entry.marker == AUTHORITY for entry in entries):
        cause += "\nhost certificates (@cert-authority) are not checked here: a plain key is needed"
    port = f"-p {destination.port} " if destination.port != 22 else ""
    return HostKeyError(
        f"the host key of `{name}` is not known",
        cause=cause,
        hint="compare the fingerprint and connect once with "
        f"`ssh {port}{destination.user}@{destination.asked}`, or set `host_keys: accept-new` in "
        "the inventory",
    )


def _quoted(name: str) -> str:
    return f"'{name}'" if name.startswith("[") else quote(name)


def _add(destination: Destination, kind: str, blob: bytes) -> None:
    """Append a line to the user's known_hosts."""
    name = destination.filed_under
    if destination.hash_known_hosts:
        salt = os.urandom(20)
        parts = (
            base64.b64encode(p).decode() for p in (salt, hmac.digest(salt, name.encode(), sha1))
        )
        name = "|1|" + "|".join(parts)
    line = f"{name} {kind} {base64.b64encode(blob).decode()}\n"
    if not destination.known_hosts:
        raise HostKeyError(
            f"the host key of `{destination.filed_under}` has no file to be added to",
            hint="`UserKnownHostsFile` of the SSH configuration names none",
        )
    file = destination.known_hosts[0]
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One write in append mode: two hosts that are added at once do not mix.
        where = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(where, (_line_end(file) + line).encode())
        finally:
            os.close(where)
    except OSError as error:
        raise HostKeyError(
            f"the host key of `{destination.filed_under}` cannot be added to {file}",
            cause=error.strerror or str(error),
        ) from error


def _line_end(file: Path) -> str:
    text = file.read_bytes()
    return "\n" if text and not text.endswith(b"\n") else ""

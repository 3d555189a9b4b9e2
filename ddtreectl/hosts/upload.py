"""Writes a file on a host so that a reader sees the old content or the new, and never a part.

One command does all of it: looks whether the disk has room, receives the content beside its target,
compares the checksum, and renames. Cut off anywhere, it removes what it has.
"""

import re
from hashlib import sha256
from typing import TYPE_CHECKING

from ddtreectl.errors import StepError

if TYPE_CHECKING:
    from ddtreectl.hosts.remote_command import Ended

DAMAGED = 71

_SCRIPT = r"""
set -u
target=$1 size=$2 sum=$3 mode=$4
folder=$(dirname -- "$target")
full() {
  there=$folder
  while [ ! -e "$there" ]; do there=$(dirname -- "$there"); done
  set -- $(stat -f -c '%S %a %c %d' -- "$there") "$(stat -c %m -- "$there")"
  if [ "$3" -gt 0 ] && [ "$4" -lt 1 ]; then echo "ddtreectl-full inodes 0 $5" >&2; exit 70; fi
  free=$(($1 * $2))
  if [ "$free" -lt "$size" ]; then echo "ddtreectl-full bytes $free $5" >&2; exit 70; fi
}
full
mkdir -p -- "$folder" || { full; exit 1; }
umask 077
part=$folder/.${target##*/}.$$.part
trap 'rm -f -- "$part"' EXIT
trap 'exit 1' HUP INT TERM
if ! cat >"$part"; then rm -f -- "$part"; full; exit 1; fi
if [ "$(sha256sum <"$part" | cut -d' ' -f1)" != "$sum" ]; then exit 71; fi
chmod "$mode" -- "$part" && sync -- "$part" && mv -T -- "$part" "$target"
"""

_SAID = re.compile(r"ddtreectl-full (bytes|inodes) (\d+) (.*)")


def argv(path: str, content: bytes, mode: int) -> list[str]:
    """The command that receives `content` on its stdin as the file `path`."""
    words = [path, str(len(content)), sha256(content).hexdigest(), f"{mode:o}"]
    return ["sh", "-c", _SCRIPT, "ddtreectl-upload", *words]


def check(ended: "Ended", path: str, size: int, host: str) -> None:
    """Make sure that an upload has ended well.

    Raises:
        StepError: it has not; what was there before is still there.
    """
    if ended.status == 0:
        return
    said = ended.stderr.decode(errors="replace")
    match = _SAID.search(said)
    what = f"`{path}` on `{host}` cannot be written"
    if match and match[1] == "inodes":
        raise StepError(
            f"{what}: no inodes are left on `{match[3]}`",
            cause=f"{match[2]} inodes free",
            hint=f"remove small files there: `df -i {match[3]}` shows how many it holds",
        )
    if match:
        raise StepError(
            f"{what}: the disk is full on `{match[3]}`",
            cause=f"{match[2]} B free, {size} B needed",
            hint=f"make room there: `df -h {match[3]}`",
        )
    if ended.status == DAMAGED:
        raise StepError(what, cause="what arrived is not what was sent; nothing was changed")
    raise StepError(what, cause=said)

"""Unpacked wheels that no environment holds any more.

Environments hold hard links to the unpacked wheels in uv's cache. One of whose files none has
another link is in no environment: its entry of the cache is removed, and uv then removes what no
entry leads to. A cache that is laid out in another way than uv 0.13 does keeps what it has.
"""

from ddtreectl.apply.session import Session
from ddtreectl.env import uv
from ddtreectl.env.build import Offline
from ddtreectl.hosts.protocol import check

DEADLINE = 600.0
COMMAND_DEADLINE = 60.0

_SCRIPT = r"""
cache=$1; shift
[ -d "$cache" ] || exit 0
for wheel in "$cache"/archive-v*/*/; do
  [ -d "$wheel" ] && [ -z "$(find "$wheel" -type f -links +1 -print -quit)" ] || continue
  wheel=${wheel%/}
  find "$cache"/wheels-v* -type l -lname "*/${wheel##*/}" 2>/dev/null |
    while read -r entry; do rm -f -- "$entry" "$entry".*; done
done
"$@" cache prune
"""


def prune(session: Session) -> None:
    """Remove the unpacked wheels of a host that are of no use; nothing where uv built none.

    Raises:
        StepError: uv cannot remove them.
    """
    layout = session.layout
    asked = session.host.run(uv.find(layout.tool("uv", uv.version())), deadline=COMMAND_DEADLINE)
    program = uv.found(asked.stdout)
    if program is None:
        return
    words = Offline(program, "", layout.package_cache).command
    script = ["sh", "-c", _SCRIPT, "ddtreectl-unpacked", layout.package_cache, *words]
    with session.report.step("remove unpacked wheels that no environment holds"):
        done = session.host.run(script, deadline=DEADLINE)
        check(done, f"unpacked wheels cannot be removed from `{session.host.name}`")

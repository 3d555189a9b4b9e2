"""Reads the audit log of a host."""

from collections.abc import Mapping
from shlex import quote

from ddtreectl.apply.session import Session
from ddtreectl.facts.output import json_objects
from ddtreectl.hosts.protocol import check

DEADLINE = 30.0
HEAD = ("at", "operator", "event")


def read(session: Session, lines: int) -> list[dict[str, object]]:
    """The last `lines` entries, oldest first; none where nothing was ever done."""
    path = quote(session.layout.audit)
    argv = ["sh", "-c", f"[ ! -e {path} ] || tail -n {lines} {path}"]
    result = session.host.run(argv, deadline=DEADLINE)
    check(result, f"the audit log of `{session.host.name}` cannot be read")
    return json_objects(result.stdout)


def sentence(entry: Mapping[str, object]) -> str:
    """What an entry tells beyond time, operator and event."""
    rest = {key: value for key, value in entry.items() if key not in HEAD and value is not None}
    return ", ".join(f"{key} {value}" for key, value in sorted(rest.items()))

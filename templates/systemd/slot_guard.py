"""Asks the router of a fleet, before a service starts, whether another slot stands for its own.

A service that was moved must not serve a second time when its old host comes back from the dead.
Where the router has a worker whose name says that it stands for this slot, the exit status is 75
and the unit is not started (systemd: `ExecCondition=`, neither started nor failed nor restarted).

In every other case the service starts: a router that does not tell within three seconds, which is
longer than it takes to restart, must not keep a fleet down after a power cut. That is safe, because
requests reach only those that are on the router's list, and what was moved is not: it would serve
nobody.

Needs nothing but the standard library. Arguments: the URL of the router, HOST/SLOT, and after how
many seconds to give up.
"""

import http.client
import json
import sys
import time
import urllib.parse

MOVED = 75
PATIENCE = "3"
TIMEOUT = 2.0
PAUSE = 0.5
LABEL = "smg.ai/discovery-id"
UNKNOWN = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError)


def ask(url: str) -> list[str]:
    """The names of the router's workers."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/workers")
        answer = connection.getresponse()
        body = answer.read(1 << 20)
    finally:
        connection.close()
    if answer.status != 200:
        raise ValueError(f"it answers with status {answer.status}")
    workers = json.loads(body)["workers"]
    return [str((worker.get("labels") or {}).get(LABEL, "")) for worker in workers]


def stands_for(names: list[str], slot: str) -> str | None:
    """The slot that stands for `slot`, or None; a name is `SLOT` or `SLOT for OTHER,OTHER`."""
    for name in names:
        own, _, others = name.partition(" for ")
        if slot in others.split(","):
            return own
    return None


def main(url: str, slot: str, patience: str = PATIENCE) -> int:
    """Ask, and return the exit status."""
    end = time.monotonic() + float(patience)
    while True:
        try:
            other = stands_for(ask(url), slot)
            break
        except UNKNOWN as error:
            if time.monotonic() + PAUSE > end:
                sys.stdout.write(f"the router {url} does not tell ({error}): starting {slot}\n")
                return 0
        time.sleep(PAUSE)
    if other is None:
        return 0
    sys.stdout.write(f"{slot} was moved: {other} stands for it at {url}; it does not start\n")
    return MOVED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

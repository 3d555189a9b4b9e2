"""Clients of the router of a lab, while a test does something to the services behind it."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.fleet.client_load import OK, Request
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.network import REPOSITORY

END_DEADLINE = 150.0


@dataclass
class Load:
    """What became of the requests, once the clients have ended.

    Attributes:
        requests: all of them.
    """

    requests: list[Request] = field(default_factory=list)

    @property
    def failed(self) -> list[Request]:
        """Those that were not answered to their end."""
        return [request for request in self.requests if request.outcome != OK]

    @property
    def workers(self) -> Counter[str]:
        """How many requests each service has answered, by its URL."""
        return Counter(request.worker for request in self.requests if request.outcome == OK)

    @property
    def texts(self) -> list[set[str]]:
        """The different answers to each body; of a model at temperature 0 there is one."""
        found: dict[int, set[str]] = {}
        for request in self.requests:
            if request.outcome == OK:
                found.setdefault(request.body, set()).add(request.text)
        return list(found.values())


@contextmanager
def clients(
    fleet: Fleet, url: str, bodies: Sequence[dict[str, object]], *words: str
) -> Iterator[Load]:
    """Clients of a router while the block runs; then what became of their requests.

    Args:
        fleet: the lab that they are in.
        url: of the router.
        bodies: of their requests, one after the other for one client after the other.
        words: further arguments of `client_load`.
    """
    asked = [word for body in bodies for word in ("--body", json.dumps(body))]
    process = subprocess.Popen(
        fleet.inside(sys.executable, "-m", "tests.fleet.client_load", url, *asked, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    load = Load()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield load
        process.terminate()
        said, wrong = process.communicate(timeout=END_DEADLINE)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, wrong
    load.requests = [Request(**entry) for entry in json.loads(said)]

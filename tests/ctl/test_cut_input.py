"""A connection that is cut leaves a command half of its input: it does then nothing, or all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ddtreectl.apply.interrupts import Interrupts
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.operator import current
from ddtreectl.apply.report import Report
from ddtreectl.hosts.local import LocalHost
from ddtreectl.hosts.protocol import RawResult
from ddtreectl.hosts.whole_input import CUT_SHORT, whole
from ddtreectl.inventory.layout import Layout


class Cut(LocalHost):
    """A host to which the connection is cut when so much of an input has been sent."""

    def __init__(self, sent: float) -> None:
        super().__init__("here")
        self.sent = sent

    def _execute(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: bytes,
        env: Mapping[str, str] | None,
    ) -> RawResult:
        some = stdin[: int(len(stdin) * self.sent)]
        return super()._execute(argv, deadline=deadline, stdin=some, env=env)


@pytest.fixture(params=[0.0, 0.5, 0.99])
def cut(request: pytest.FixtureRequest) -> Cut:
    return Cut(request.param)


def test_a_lock_is_whole_or_not_there(cut: Cut, tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "root"), "/e", "/u")
    lock = HostLock(cut, layout, current())
    with lock.held(Interrupts(lambda text: None), Report(lambda text: None)):
        assert json.loads(Path(layout.lock).read_text())["pid"] == current().pid


def test_half_of_a_path_is_not_removed(cut: Cut, tmp_path: Path) -> None:
    for name in ("model", "model/old"):
        (tmp_path / name).mkdir()
    names = b"model/old\0"
    argv = whole(["sh", "-c", 'cd -- "$1" && exec xargs -0 rm -rf --', "rm", str(tmp_path)], names)
    assert cut.pipe(argv, deadline=10.0, stdin=names).returncode == CUT_SHORT
    assert (tmp_path / "model/old").exists()
    assert LocalHost("here").pipe(argv, deadline=10.0, stdin=names).returncode == 0
    assert not (tmp_path / "model/old").exists()
    assert (tmp_path / "model").exists()

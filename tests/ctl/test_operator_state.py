"""What several commands of one operator keep in a file at the same time."""

import os
import threading
from pathlib import Path

import pytest

from ddtreectl.apply import operator_state
from ddtreectl.apply.kept_moves import KeptServices
from ddtreectl.apply.operator_state import OperatorState
from ddtreectl.errors import DdtreectlError
from ddtreectl.inventory.service import Mode
from tests.ctl.test_plan import spec

INVENTORY = Path("fleet.yaml")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_what_another_command_notes_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Event()
    monkeypatch.setattr(operator_state.time, "sleep", lambda _: waits.set())
    kept, tree = KeptServices(INVENTORY), spec(Mode.TREE)
    seen = {"gpu1": (tree, 1)}
    noting = threading.Thread(target=lambda: KeptServices(INVENTORY).note("h1", seen))
    with OperatorState(INVENTORY, "services").changed() as content:
        noting.start()
        assert waits.wait(30)
        told = {"service": tree.model_dump(mode="json"), "generation": 7}
        content["h1"] = {"gpu0": told}
    noting.join(30)
    assert kept.of("h1", "gpu0") == (tree, 7)
    assert kept.of("h1", "gpu1") == (tree, 1)


def test_what_is_as_before_waits_for_nobody() -> None:
    kept = KeptServices(INVENTORY)
    kept.note("h1", {"gpu0": (spec(), 1)})
    with OperatorState(INVENTORY, "services").changed():
        kept.note("h1", {"gpu0": (spec(), 1)})


def test_a_command_that_does_not_let_go_is_named() -> None:
    state = OperatorState(INVENTORY, "services", patience=0.0)
    with state.changed(), pytest.raises(DdtreectlError) as caught, state.changed():
        pass
    assert "is locked by another ddtreectl" in caught.value.message
    assert f"process {os.getpid()} has had it" in caught.value.cause
    assert f"`ps -fp {os.getpid()}`" in caught.value.hint
    with state.changed() as content:  # and is let go of when its command ends
        content["h1"] = {}

"""Which environment a host gets: by what it is, by what is wanted, and by what was provisioned."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ddtreectl.env.cuda import Accelerators
from ddtreectl.env.lock import EnvironmentLock
from ddtreectl.env.request import Ingredients, accelerators, provisioned, resolve
from ddtreectl.env.wheel import Wheel
from ddtreectl.errors import RefusedError
from ddtreectl.facts import record_files
from ddtreectl.facts.driver import Driver
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.output import Output
from ddtreectl.facts.python import Python
from ddtreectl.facts.records import Provisioned, Records
from ddtreectl.inventory.environment import EnvironmentSettings
from ddtreectl.inventory.layout import Layout
from ddtreectl.inventory.model import HostEntry, Inventory
from ddtreectl.inventory.select import find_host
from tests.ctl.test_plan import CARDS, PLACE, SERVING

BROUGHT = Ingredients(
    Wheel("ddtree_engine-1-py3-none-any.whl", b"one"), "numpy==2.4\ntorch==2.13.0\n"
)
NEXT = replace(BROUGHT, engine=Wheel("ddtree_engine-2-py3-none-any.whl", b"two"))
FACTS = replace(SERVING, driver=Driver("575.57.08", "575.57.08", 2), records=Records())
HOST = PLACE.host


def with_record(**changes: Any) -> HostFacts:
    """The facts once `resolve` was provisioned, with the record changed."""
    first = resolve(HOST, FACTS, BROUGHT)
    record = Provisioned(
        "engine", first.environment, "2.13.0", "cu128", engine=BROUGHT.engine.sha256
    )
    return replace(FACTS, records=Records(provisioned={"engine": replace(record, **changes)}))


def wishing(**settings: Any) -> HostEntry:
    return HOST.model_copy(update={"environment": EnvironmentSettings(**settings)})


def lock_of(
    facts: HostFacts, host: HostEntry = HOST, brought: Ingredients = BROUGHT
) -> EnvironmentLock:
    lock = provisioned(host, facts, brought).lock
    assert lock is not None
    return lock


def test_the_driver_and_the_gpus_of_the_slots_count() -> None:
    assert accelerators(HOST, FACTS) == Accelerators(True, (575, 57, 8), ((12, 0),))
    assert CARDS[0].index not in [gpu for slot in HOST.slots.values() for gpu in slot.gpus]
    assert resolve(HOST, FACTS, BROUGHT).choice.build == "cu128"


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (replace(FACTS, python=None), "`python3` does not run"),
        (replace(FACTS, python=Python((3, 9, 2), "x", True)), "`python3` is Python 3.9.2"),
        (
            replace(FACTS, python=Python((3, 11, 2), "x", False)),
            "apt-get install python3-venv",
        ),
        (
            replace(FACTS, driver=Driver(), gpus=replace(FACTS.gpus, driver=None)),
            "no NVIDIA driver",
        ),
    ],
)
def test_a_host_that_can_have_none(facts: HostFacts, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        resolve(HOST, facts, BROUGHT)


def test_a_name_stands_for_everything_that_is_in_it() -> None:
    lock = lock_of(FACTS)
    others = [
        replace(lock, torch="2.11.0"),
        replace(lock, build="cu130"),
        replace(lock, abi="cpython-312"),
        replace(lock, constraints="numpy==2.5\n"),
        replace(lock, wheel=NEXT.engine),
        replace(lock, wheelhouse="0123"),
    ]
    assert len({lock.name, *(other.name for other in others)}) == 1 + len(others)
    same = replace(lock, constraints=f"# why\n\n{lock.constraints}")
    assert same.name == lock.name
    assert lock.name.startswith("engine-cu128-")


@pytest.mark.parametrize(
    ("build", "wheelhouse", "extras"),
    [("cu128", None, "[fla]"), ("cpu", None, ""), ("cu128", "0123", ""), ("cpu", "0123", "")],
)
def test_kernels_come_with_builds_for_gpus_from_an_index(
    build: str, wheelhouse: str | None, extras: str
) -> None:
    assert replace(lock_of(FACTS), build=build, wheelhouse=wheelhouse).extras == extras


def test_another_torch_replaces_the_pin_and_brings_its_own_triton() -> None:
    lock = replace(
        lock_of(FACTS), torch="2.11.0", constraints="triton==3.7.1\ntorch==2.13.0\nrich==1\n"
    )
    assert lock.pins == "torch==2.11.0\nrich==1\n"
    assert replace(lock, torch="2.13.0").pins == "triton==3.7.1\ntorch==2.13.0\nrich==1\n"


def test_a_deploy_goes_by_what_was_provisioned() -> None:
    facts = with_record(torch="2.11.0", build="cu126", wheelhouse="0123", torch_wheel="torch.whl")
    request = provisioned(HOST, facts, NEXT)
    assert request.lock is not None
    assert (request.lock.torch, request.choice.build) == ("2.11.0", "cu126")
    assert (request.held, request.torch_wheel) == ("0123", "torch.whl")
    assert request.lock.wheel == NEXT.engine
    assert request.wheelhouse is None


@pytest.mark.parametrize("wish", [{"torch": "2.12.0"}, {"cuda": "cu130"}])
def test_the_inventory_has_the_last_word(wish: dict[str, str]) -> None:
    newer = replace(with_record(), driver=Driver("580.95.05", None, 2))
    lock = lock_of(newer, wishing(**wish))
    assert wish in ({"torch": lock.torch}, {"cuda": lock.build})
    agreeing = wishing(torch="2.13.0", cuda="cu128")
    assert lock_of(newer, agreeing).name == lock_of(with_record()).name


def test_an_environment_that_was_taken_over_is_used_as_it_is() -> None:
    facts = with_record(taken_from="ct129", environment="engine-cu128-theirs")
    request = provisioned(HOST, facts, BROUGHT)
    assert (request.environment, request.lock) == ("engine-cu128-theirs", None)
    with pytest.raises(RefusedError, match="taken over from `ct129` has another engine"):
        provisioned(HOST, facts, NEXT)


def test_a_record_is_read_as_it_was_written_and_survives_damage() -> None:
    layout = Layout("/r", "/r/environments", "/u")
    record = Provisioned("engine", "engine-cu128-a", "2.13.0", "cu128", "0123", None, "t.whl", "e")
    entry = dict(vars(record))
    text = json.dumps({"engine": entry, "sglang": "?", "more": {"torch": 1}})
    found = record_files.parse(Output(0, f"/r/provisioned.json\t1\t{text}\n"), layout).provisioned
    assert found["engine"] == record
    assert "sglang" not in found
    assert record_files.parse(Output(0, "/r/provisioned.json\t1\t[1\n"), layout).provisioned == {}


def test_a_host_changes_what_the_inventory_says_for_all() -> None:
    inventory = Inventory.model_validate(
        {
            "environment": {"wheelhouse": "~/wheels", "torch": "2.11.0"},
            "hosts": {
                "a": {"address": "a", "slots": {"g": {"gpus": [0], "port": 1}}},
                "b": {
                    "address": "b",
                    "environment": {"torch": "2.13.0"},
                    "slots": {"g": {"gpus": [0], "port": 1}},
                },
            },
        }
    )
    assert find_host(inventory, "a").environment.torch == "2.11.0"
    settings = find_host(inventory, "b").environment
    assert (settings.torch, settings.wheelhouse, settings.cuda) == ("2.13.0", "~/wheels", "auto")

"""Inventories: what is accepted, and where each mistake is shown to be."""

from pathlib import Path

import pytest

from ddtreectl import bundle
from ddtreectl.errors import InventoryError, UsageError
from ddtreectl.inventory.loader import load, parse
from ddtreectl.inventory.select import find_place, service_for
from ddtreectl.inventory.service import Mode

CASES = sorted((Path(__file__).parent / "inventories").glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_mistake_is_shown_where_it_is(path: Path) -> None:
    expected = path.with_suffix(".txt").read_text().splitlines()
    with pytest.raises(InventoryError) as caught:
        parse(path.read_text(), "fleet.yaml")
    assert caught.value.message.splitlines() == [f"fleet.yaml:{line}" for line in expected]


@pytest.mark.parametrize("text", ["[" * 500_000, "{a: " * 200_000, "\n" + "- " * 400_000])
def test_what_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(InventoryError, match="nested too deeply"):
        parse(f"hosts: {text}", "fleet.yaml")


def test_aliases_that_stand_for_too_much_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    with pytest.raises(InventoryError, match=r"fleet\.yaml:7:.* its aliases stand for more"):
        parse("\n".join(lines), "fleet.yaml")


def test_a_collection_that_holds_itself_is_refused() -> None:
    with pytest.raises(InventoryError):
        parse("hosts: &a {b: *a}", "fleet.yaml")


def test_the_bundled_inventories_are_right() -> None:
    local = load(bundle.inventories() / "local.yaml")
    assert local.hosts["local"].slots["cpu0"].port == 30001
    fleet = load(bundle.inventories() / "fleet.yaml")
    for name in ("ct129", "ct200"):
        host = fleet.hosts[name]
        assert [(slot.gpus, slot.port) for slot in host.slots.values()] == [([1], 30001)]
        assert [(kept.gpus, kept.port) for kept in host.protected] == [([0], 30000)]


def test_a_slot_changes_some_defaults() -> None:
    inventory = parse(
        "defaults: {budget: 32, topk: 4, model: /srv/m, drafter: /srv/d}\n"
        "hosts:\n"
        "  ct200:\n"
        "    address: 10.1.2.200\n"
        "    slots:\n"
        "      gpu1: {gpus: [1], port: 30001, service: {budget: 64}}\n",
        "fleet.yaml",
    )
    place = find_place(inventory, "ct200")
    service = service_for(inventory, place, Mode.TREE, topk=2)
    assert (service.budget, service.topk, service.model) == (64, 2, "/srv/m")
    assert (service.device, service.port) == ("cuda:1", 30001)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    with pytest.raises(InventoryError, match="cannot be read"):
        load(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"hosts:\n  # caf\xe9\n")
    with pytest.raises(InventoryError, match=r"latin.yaml:2:1: not UTF-8 text"):
        load(latin)


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({}, "has several slots: gpu1 (port 30001), gpu2 (port 30002)"),
        ({"gpu": 5}, "no slot of `ct200` is what is asked for"),
        ({"gpu": 1, "port": 30002}, "no slot of `ct200` is what is asked for"),
        ({"gpu": 0}, "GPU 0 of `ct200` belongs to the protected `wrapper`: has clients"),
        ({"port": 30000}, "port 30000 of `ct200` belongs to the protected `wrapper`"),
    ],
)
def test_a_slot_that_is_not_to_be_had(wishes: dict[str, int], said: str) -> None:
    inventory = parse(
        "hosts:\n"
        "  ct200:\n"
        "    address: 10.1.2.200\n"
        "    slots: {gpu1: {gpus: [1], port: 30001}, gpu2: {gpus: [2], port: 30002}}\n"
        "    protected: [{name: wrapper, gpus: [0], port: 30000, reason: has clients}]\n",
        "fleet.yaml",
    )
    with pytest.raises(UsageError) as caught:
        find_place(inventory, "ct200", **wishes)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 0}, "`--budget` must be `auto`, or a number from 1 to 1024"),
        ({"budget": 1025}, "`--budget` must be `auto`, or a number from 1 to 1024"),
        ({"budget": "16"}, "`--budget` must be `auto`, or a number from 1 to 1024"),
        ({"topk": 65}, "`--topk` must be less than or equal to 64"),
        ({"model": "models/x", "drafter": "/d"}, "neither `bundled` nor an absolute path"),
        ({"model": "/srv/m"}, "name both `model` and `drafter`"),
        ({"model": "/srv/\n", "drafter": "/d"}, "no control characters"),
    ],
)
def test_an_option_out_of_range(options: dict[str, object], said: str) -> None:
    inventory = load(bundle.inventories() / "local.yaml")
    with pytest.raises(UsageError) as caught:
        service_for(inventory, find_place(inventory, "local"), Mode.TREE, **options)
    assert said in caught.value.message


def test_a_budget_that_the_engine_chooses() -> None:
    inventory = parse(
        "defaults: {budget: auto}\n"
        "hosts: {h: {address: 10.0.0.1, slots: {gpu0: {gpus: [0], port: 30000}}}}\n",
        "fleet.yaml",
    )
    place = find_place(inventory, "h")
    assert service_for(inventory, place, Mode.TREE).budget == "auto"
    assert service_for(inventory, place, Mode.TREE, budget=31).budget == 31

"""The list of workers: every change leaves what smg reads and what ddtreectl reads alike."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtreectl.apply.router_list import PROGRAM

SLOTS = ["h1/gpu0", "h2/gpu0", "h2/gpu1"]


def change(folder: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-IS", "-c", PROGRAM, str(folder / "router"), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    kept: dict[str, Any] = json.loads(done.stdout)
    return kept


def manifest(folder: Path) -> dict[str, str]:
    content = json.loads((folder / "router/workers.json").read_text())
    assert set(content) == {"version", "workers"}
    assert content["version"] == 1
    assert all(set(worker) == {"id", "url"} for worker in content["workers"])
    return {worker["id"]: worker["url"] for worker in content["workers"]}


def test_a_look_makes_no_files(tmp_path: Path) -> None:
    empty = {"workers": {}, "moved": {}, "expected": {}, "out": {}}
    assert change(tmp_path, "show") == {**empty, "revision": 0, "made": False}
    assert list(tmp_path.iterdir()) == []


def test_workers_come_and_go(tmp_path: Path) -> None:
    change(tmp_path, "add", "h1/gpu0", "http://a")
    change(tmp_path, "add", "h2/gpu0", "http://b")
    assert manifest(tmp_path) == {"h1/gpu0": "http://a", "h2/gpu0": "http://b"}
    change(tmp_path, "add", "h1/gpu0", "http://c")
    change(tmp_path, "remove", "h2/gpu0")
    change(tmp_path, "remove", "h2/gpu0")
    assert manifest(tmp_path) == {"h1/gpu0": "http://c"}
    assert change(tmp_path, "show")["workers"] == {"h1/gpu0": "http://c"}
    assert (tmp_path / "router/workers.json").stat().st_mode & 0o777 == 0o644


def test_an_address_is_never_listed_twice(tmp_path: Path) -> None:
    change(tmp_path, "add", "old/gpu0", "http://a")
    change(tmp_path, "add", "new/gpu0", "http://a")
    assert manifest(tmp_path) == {"new/gpu0": "http://a"}


def test_what_was_moved_is_not_added_until_it_is_forgotten(tmp_path: Path) -> None:
    change(tmp_path, "add", "h1/gpu0", "http://a")
    change(tmp_path, "move", "h1/gpu0", "h2/gpu0")
    change(tmp_path, "add", "h2/gpu0", "http://b")
    assert manifest(tmp_path) == {"h2/gpu0 for h1/gpu0": "http://b"}
    kept = change(tmp_path, "add", "h1/gpu0", "http://a")
    assert kept["workers"] == {"h2/gpu0": "http://b"}
    assert kept["moved"] == {"h1/gpu0": "h2/gpu0"}
    change(tmp_path, "unmove", "h1/gpu0")
    change(tmp_path, "add", "h1/gpu0", "http://a")
    assert manifest(tmp_path) == {"h1/gpu0": "http://a", "h2/gpu0": "http://b"}


def test_what_is_to_stand_for_a_slot_keeps_its_name_when_it_does(tmp_path: Path) -> None:
    """A name that changes would cost its worker 5 s without requests."""
    change(tmp_path, "add", "h1/gpu0", "http://a")
    change(tmp_path, "expect", "h1/gpu0", "h2/gpu0")
    assert manifest(tmp_path) == {"h1/gpu0": "http://a"}
    change(tmp_path, "add", "h2/gpu0", "http://b")
    both = {"h1/gpu0": "http://a", "h2/gpu0 for h1/gpu0": "http://b"}
    assert manifest(tmp_path) == both
    kept = change(tmp_path, "move", "h1/gpu0", "h2/gpu0")
    assert manifest(tmp_path) == {"h2/gpu0 for h1/gpu0": "http://b"}
    assert kept["expected"] == {}
    change(tmp_path, "expect", "h2/gpu0", "h2/gpu1")
    change(tmp_path, "add", "h2/gpu1", "http://c")
    assert manifest(tmp_path)["h2/gpu1 for h1/gpu0,h2/gpu0"] == "http://c"
    change(tmp_path, "move", "h2/gpu0", "h2/gpu1")
    assert manifest(tmp_path) == {"h2/gpu1 for h1/gpu0,h2/gpu0": "http://c"}


def test_what_was_expected_in_vain_is_taken_back(tmp_path: Path) -> None:
    change(tmp_path, "add", "h1/gpu0", "http://a")
    change(tmp_path, "expect", "h1/gpu0", "h2/gpu0")
    assert change(tmp_path, "unexpect", "h1/gpu0", "h2/gpu1")["expected"] == {"h1/gpu0": "h2/gpu0"}
    assert change(tmp_path, "unexpect", "h1/gpu0", "h2/gpu0")["expected"] == {}
    change(tmp_path, "add", "h2/gpu0", "http://b")
    assert manifest(tmp_path) == {"h1/gpu0": "http://a", "h2/gpu0": "http://b"}


def test_a_list_without_expectations_is_read(tmp_path: Path) -> None:
    (tmp_path / "router").mkdir()
    content = {"workers": {"h1/gpu0": "http://a"}, "moved": {}}
    (tmp_path / "router/slots.json").write_text(json.dumps(content))
    assert change(tmp_path, "show").items() >= {**content, "expected": {}, "out": {}}.items()
    change(tmp_path, "expect", "h1/gpu0", "h2/gpu0")
    assert manifest(tmp_path) == {"h1/gpu0": "http://a"}


def test_what_was_moved_twice_is_where_it_was_moved_last(tmp_path: Path) -> None:
    change(tmp_path, "move", "h1/gpu0", "h2/gpu0")
    kept = change(tmp_path, "move", "h2/gpu0", "h2/gpu1")
    assert kept["moved"] == {"h1/gpu0": "h2/gpu1", "h2/gpu0": "h2/gpu1"}
    back = change(tmp_path, "move", "h2/gpu1", "h1/gpu0")
    assert back["moved"] == {"h2/gpu0": "h1/gpu0", "h2/gpu1": "h1/gpu0"}


def test_what_comes_back_serves_beside_what_stands_for_it_and_renames_nothing(
    tmp_path: Path,
) -> None:
    change(tmp_path, "add", "h2/gpu0", "http://b")
    change(tmp_path, "move", "h1/gpu0", "h2/gpu0")
    assert change(tmp_path, "add", "h1/gpu0", "http://a")["workers"] == {"h2/gpu0": "http://b"}
    change(tmp_path, "return", "h1/gpu0", "h2/gpu0")
    assert manifest(tmp_path) == {"h2/gpu0 for h1/gpu0": "http://b"}
    change(tmp_path, "add", "h1/gpu0", "http://a")
    assert manifest(tmp_path) == {"h1/gpu0": "http://a", "h2/gpu0 for h1/gpu0": "http://b"}
    change(tmp_path, "move", "h1/gpu0", "h2/gpu0")  # it has failed
    assert manifest(tmp_path) == {"h2/gpu0 for h1/gpu0": "http://b"}
    change(tmp_path, "return", "h1/gpu0", "h2/gpu0")
    change(tmp_path, "add", "h1/gpu0", "http://a")
    change(tmp_path, "remove", "h2/gpu0")
    assert change(tmp_path, "unexpect", "h1/gpu0", "h2/gpu0")["expected"] == {}
    assert manifest(tmp_path) == {"h1/gpu0": "http://a"}


def test_of_operators_who_have_seen_the_same_list_one_takes_a_worker_out(tmp_path: Path) -> None:
    names = [f"h{number}/gpu0" for number in range(6)]
    for name in names:
        change(tmp_path, "add", name, f"http://{name}")
    seen = str(change(tmp_path, "show")["revision"])
    with ThreadPoolExecutor(6) as pool:
        told = list(
            pool.map(lambda name: change(tmp_path, "remove", name, seen, "60", '["m"]'), names)
        )
    (first,) = (name for name, kept in zip(names, told, strict=True) if kept["made"])
    assert set(manifest(tmp_path)) == set(names) - {first}
    (out,) = change(tmp_path, "show")["out"].items()
    assert (out[0], out[1]["models"]) == (first, ["m"])


@pytest.mark.parametrize("way_back", ["remove", "time"])
def test_what_does_not_come_back_is_waited_for_no_more(tmp_path: Path, way_back: str) -> None:
    change(tmp_path, "add", "h1/gpu0", "http://a")
    seen = str(change(tmp_path, "show")["revision"])
    within = "0" if way_back == "time" else "60"
    change(tmp_path, "remove", "h1/gpu0", seen, within, '["m"]')
    if way_back == "remove":
        assert set(change(tmp_path, "show")["out"]) == {"h1/gpu0"}
        change(tmp_path, "remove", "h1/gpu0")
    assert change(tmp_path, "show")["out"] == {}


def test_operators_at_once_lose_no_change(tmp_path: Path) -> None:
    names = [f"h{number}/gpu0" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: change(tmp_path, "add", name, f"http://{name}"), names))
    assert manifest(tmp_path) == {name: f"http://{name}" for name in names}


changes = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(SLOTS), st.sampled_from(["http://u", "http://v"])),
    st.tuples(st.sampled_from(["remove", "unmove"]), st.sampled_from(SLOTS)),
    st.tuples(
        st.sampled_from(["move", "expect", "unexpect", "return"]), st.permutations(SLOTS)
    ).map(lambda drawn: (drawn[0], drawn[1][0], drawn[1][1])),
)


@settings(max_examples=12)
@given(made=st.lists(changes, min_size=1, max_size=6))
def test_no_slot_ever_serves_beside_what_stands_for_it(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    kept: dict[str, Any] = {}
    for words in made:
        kept = change(folder, *words)
    assert not set(kept["workers"]) & set(kept["moved"])
    assert not set(kept["moved"].values()) & set(kept["moved"])
    stands = [name.partition(" for ")[2] for name in manifest(folder)]
    told = {slot for others in stands for slot in others.split(",") if slot}
    stood_for = {**kept["expected"], **kept["moved"]}
    direct = {slot for slot, by in stood_for.items() if by in kept["workers"]}
    assert told == direct | {slot for slot, by in kept["moved"].items() if by in direct}

"""Cordons: what they cover, how they read, and that plans refuse them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtreectl.apply.cordons import cordon as apply_cordon
from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.cli.context import Context
from ddtreectl.facts import cordons, record_files
from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.gpu import Gpus, unknown
from ddtreectl.facts.kernel_log import GpuError, KernelLog
from ddtreectl.facts.output import Output
from ddtreectl.inventory.layout import Layout
from ddtreectl.inventory.select import find_target
from ddtreectl.plan.refusals import refusals
from tests.ctl.test_plan import BARE, CARDS, UUID, wish

LAYOUT = Layout("/r", "/r/environments", "/etc/systemd/system")
HOST = Cordon(None, None, "power supply", "ada@ops", "2026-01-02T03:04:05.000000+00:00")
CARD = replace(HOST, gpu=1, uuid=UUID, reason="Xid 79")


def test_a_cordon_of_the_host_covers_every_gpu() -> None:
    assert HOST.covers(0, BARE.gpus)
    assert HOST.covers(5, Gpus("hung"))


def test_a_cordon_follows_its_card_when_indices_move() -> None:
    assert CARD.covers(1, BARE.gpus)
    assert not CARD.covers(0, BARE.gpus)
    moved = Gpus("ok", gpus=(replace(CARDS[1], index=0),))
    assert CARD.covers(0, moved)
    assert not CARD.covers(1, Gpus("ok", gpus=(replace(CARDS[0], index=1),)))


def test_without_a_card_the_index_counts() -> None:
    assert replace(CARD, uuid=None).covers(1, BARE.gpus)
    assert CARD.covers(1, Gpus("hung"))
    assert CARD.covers(1, Gpus("ok", gpus=(unknown(1),)))


def test_what_is_written_is_read() -> None:
    for cordon in (HOST, CARD, replace(CARD, uuid=None)):
        assert cordons.cordon(cordon.name, cordon.to_json()) == cordon


@pytest.mark.parametrize("name", ["host", "gpu3", f"{UUID}", "gpu"])
def test_a_damaged_file_is_a_cordon_all_the_same(name: str) -> None:
    found = cordons.cordon(name, {})
    assert found.name in {name, "host"}
    assert "its file cannot be read" in str(found)


@given(
    st.text(max_size=20),
    st.dictionaries(st.sampled_from(["gpu", "uuid", "reason", "by", "at"]), st.text() | st.none()),
)
def test_a_cordon_is_read_whatever_its_file_holds(name: str, content: dict[str, object]) -> None:
    assert str(cordons.cordon(name, content))


def test_cordons_are_records_of_the_host() -> None:
    text = (
        '/r/cordons/host.json\t5\t{"reason": "power supply", "by": "ada@ops", "at": "t"}\n'
        f'/r/cordons/{UUID}.json\t5\t{{"gpu": 1, "uuid": "{UUID}", "reason": "x"}}\n'
        '/r/settled.json\t5\t{"0000:3b:00": 17.5, "": 3, "x": "y"}\n'
    )
    found = record_files.parse(Output(0, text), LAYOUT)
    assert [(c.gpu, c.uuid, c.reason) for c in found.cordons] == [
        (1, UUID, "x"),
        (None, None, "power supply"),
    ]
    assert found.settled == {"0000:3b:00": 17.5, "": 3.0}


def test_a_cordoned_place_is_refused_and_the_way_out_is_named() -> None:
    held = replace(BARE, records=replace(BARE.records, cordons=(HOST,)))
    said = refusals(wish(number=1), held)
    text = "the host is cordoned: power supply (ada@ops, 2026-01-02T03:04)"
    assert said == [f"{text}; `ddtreectl uncordon gpuhost` ends that"]
    held = replace(BARE, records=replace(BARE.records, cordons=(CARD,)))
    assert "`ddtreectl uncordon gpuhost:1`" in refusals(wish(number=1), held)[0]
    other = replace(CARD, gpu=0, uuid=CARDS[0].uuid)
    assert (
        refusals(wish(number=1), replace(BARE, records=replace(held.records, cordons=(other,))))
        == []
    )


def test_a_gpu_that_needs_a_reset_is_refused_until_it_is_settled() -> None:
    card = replace(CARDS[1], pci="0000:3b:00")
    log = KernelLog("journal", 100.0, (GpuError("0000:3b:00", 95, times=(50.0,)),))
    hurt = replace(BARE, gpus=Gpus("ok", "580", (CARDS[0], card)), kernel_log=log)
    said = refusals(wish(number=1), hurt)
    assert len(said) == 1
    assert said[0].startswith("GPU 1: Xid 95: ")
    assert "ddtreectl drain gpuhost:1" in said[0]
    settled = replace(hurt, records=replace(hurt.records, settled={"0000:3b:00": 60.0}))
    assert refusals(wish(number=1), settled) == []


def test_a_host_that_was_just_found_dead_is_not_tried_again(tmp_path: Path) -> None:
    """The test's host has an address that nobody has: to try it would take seconds, and fail."""
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "hosts: {h1: {address: 192.0.2.1, slots: {gpu0: {gpus: [0], port: 30000}}}}\n"
        "ssh: {config: /dev/null}\n"
    )
    opened = Context(path)
    session = opened.session(opened.inventory(), "h1")
    kept = KeptCordons(path)
    target = find_target(opened.inventory(), "h1")
    done = apply_cordon(session, target, "its services migrate", kept, unreachable="`h1` is gone")
    assert (done.unreachable, done.cordon.kept) == ("`h1` is gone", "operator")
    assert [entry.reason for entry in kept.of("h1")] == ["its services migrate"]

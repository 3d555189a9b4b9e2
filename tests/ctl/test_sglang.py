"""Backend `sglang`: command lines, refusals, and what its answers mean. SGLang itself runs nowhere.

A case of a command line is a file; what the two releases have is a table of data.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ddtreectl.apply import sglang as service_checks
from ddtreectl.errors import UsageError
from ddtreectl.facts.gpu import ComputeProcess, Gpus, unknown
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.http import Answer
from ddtreectl.inventory.loader import parse
from ddtreectl.inventory.select import find_place, service_for
from ddtreectl.inventory.service import Mode, ServiceSpec
from ddtreectl.plan.refusals import refusals
from ddtreectl.plan.step import Candidate
from ddtreectl.plan.wish import Wish
from ddtreectl.units import sglang
from ddtreectl.units.render import render

HERE = Path(__file__).parent
CASES = sorted((HERE / "sglang").glob("*.yaml"))
VERSIONS: dict[str, Any] = YAML(typ="safe").load((HERE / "data/sglang_versions.yaml").read_text())
SLOT = "{gpus: [1], port: 30001}"
DEFAULTS = "backend: sglang, model: /srv/m, drafter: /srv/d"


def spec(
    mode: str = "linear", slot: str = SLOT, defaults: str = DEFAULTS, **options: Any
) -> ServiceSpec:
    inventory = parse(
        f"defaults: {{{defaults}}}\nhosts:\n  ct200:\n    address: 10.1.2.200\n"
        f"    slots:\n      one: {slot}\n",
        "fleet.yaml",
    )
    return service_for(inventory, find_place(inventory, "ct200"), Mode(mode), **options)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_command_line(path: Path) -> None:
    case = YAML(typ="safe").load(path.read_text())
    service = spec(case["mode"], case["slot"], case["defaults"], budget=case.get("budget"))
    capabilities = [(major, minor) for major, minor in case["capabilities"]]
    words = sglang.argv("/e/bin/python", service, capabilities)
    assert words[:3] == ["/e/bin/python", "-m", "sglang.launch_server"]
    assert words[3:] == case["argv"].split()
    known = {*VERSIONS["both"]["switches"], *VERSIONS["both"]["values"], *case.get("patched", [])}
    assert {word for word in words[3:] if word.startswith("--")} <= known


def test_no_queue_is_the_shortest_that_lets_requests_in() -> None:
    words = sglang.argv("/p", spec(defaults=f"{DEFAULTS}, max_queue: 0"), [(9, 0)])
    assert words[words.index("--max-queued-requests") + 1] == "1"


def test_the_unit_of_a_slot_of_two_gpus() -> None:
    service = spec(slot="{gpus: [2, 3], port: 30023}")
    inventory = parse(
        f"defaults: {{{DEFAULTS}}}\nhosts:\n  ct200:\n    address: 10.1.2.200\n"
        "    slots:\n      gpu23: {gpus: [2, 3], port: 30023}\n",
        "fleet.yaml",
    )
    place = find_place(inventory, "ct200", gpu=3)
    assert place.slot_name == "gpu23"
    unit = render(
        layout=place.layout,
        slot="gpu23",
        service=service,
        generation=1,
        environment="sglang-cu130-x",
        gpus=[replace(unknown(i), uuid=f"GPU-{i}", minor=i) for i in (2, 3)],
    )
    assert "Type=exec\n" in unit.text
    assert "KillMode=mixed\n" in unit.text
    assert "WatchdogSec" not in unit.text
    assert "TimeoutStopSec=45\n" in unit.text
    assert "DeviceAllow=/dev/nvidia2 rw\n" in unit.text
    assert "DeviceAllow=/dev/nvidia3 rw\n" in unit.text
    assert "AF_NETLINK" in unit.text
    assert 'CUDA_VISIBLE_DEVICES="GPU-2,GPU-3"\n' in unit.environment_file
    assert 'SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION="false"\n' in unit.environment_file


def test_a_start_may_take_what_the_weights_need() -> None:
    service = spec()
    assert sglang.start_timeout(service, 0) == 180
    assert sglang.start_timeout(service, 54 << 30) == 120 + 276
    patient = service.model_copy(update={"start_timeout": 3600})
    assert sglang.start_timeout(patient, 54 << 30) == 3600


@pytest.mark.parametrize(
    ("version", "mode", "flag", "said"),
    [
        ("0.5.16", "linear", "--enable-gdn-replayssm-spec", "dies at the first verify"),
        ("0.5.23", "linear", "--enable-gdn-replayssm-spec", ""),  # it has no such argument
        ("0.5.16", "tree", "--enable-gdn-replayssm-spec", ""),
        ("0.5.23", "linear", "--enable-linear-replayssm-spec", "KDA models alone"),
        ("0.6.0", "linear", "--enable-linear-replayssm-spec", "KDA models alone"),
        ("0.5.16", "linear", "--pp-size=2", "no pipelines"),
        ("0.5.16", "linear", "--enable-metrics", ""),
    ],
)
def test_what_starts_and_does_not_serve_is_refused_by_name(
    version: str, mode: str, flag: str, said: str
) -> None:
    found = sglang.traps(spec(mode), version, [flag], [(9, 0)])
    assert len(found) == (1 if said else 0)
    assert all(said in text and flag.partition("=")[0] in text for text in found)


def test_attention_on_blackwell() -> None:
    service = spec(defaults=f"{DEFAULTS}, sglang: {{attention_backend: fa3}}")
    assert "compute capability 12" in sglang.traps(service, "0.5.23", [], [(12, 0)])[0]
    assert sglang.traps(service, "0.5.23", [], [(9, 0)]) == []
    assert sglang.attention_backend(service, [(12, 0)]) == "fa3"


def test_a_slot_changes_one_setting_of_sglang_and_keeps_the_others() -> None:
    service = spec(
        slot="{gpus: [1], port: 30001, service: {sglang: {block_size: 8}}}",
        defaults=f"{DEFAULTS}, sglang: {{grammar_backend: none, block_size: 16}}",
    )
    assert (service.sglang.block_size, service.sglang.grammar_backend) == (8, "none")
    again = ServiceSpec.model_validate(service.model_dump(mode="json"), strict=False)
    assert again == service


def test_the_bundled_model_is_the_engines() -> None:
    with pytest.raises(UsageError, match="of the host"):
        spec(model="bundled", drafter="bundled")


INFO: dict[str, object] = {
    "speculative_algorithm": "DFLASH",
    "model_path": "/srv/m",
    "speculative_draft_model_path": "/srv/d",
    "tp_size": 1,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"speculative_algorithm": None}, "speculative_algorithm `None`, and `DFLASH`"),
        ({"model_path": "/srv/old"}, "model_path `/srv/old`"),
        ({"tp_size": 2}, "tp_size `2`"),
    ],
)
def test_a_server_that_runs_something_else(change: dict[str, object], said: str) -> None:
    assert said in service_checks.disagreement(spec(), {**INFO, **change})
    assert bool(said) == bool(service_checks.disagreement(spec(), {**INFO, **change}))


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([{"effective_max_running_requests_per_dp": 11}], "takes 11 requests at a time and 48"),
        ([{"effective_max_running_requests_per_dp": 48}], ""),
        ([{}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_limit_that_was_lowered_is_read_back(states: object, said: str) -> None:
    service = spec(defaults=f"{DEFAULTS}, max_running: 48")
    found = service_checks.fewer_requests(service, {"internal_states": states})
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"text": " a loop from 0"}', ""),
        ('{"text": ""}', "no text"),
        ('{"text": "!!!!!!!!!!!!"}', "repeats one character"),
        ("[]", "no text"),
    ],
)
def test_text_that_is_none(body: str, said: str) -> None:
    found = service_checks.degenerate(Answer("", 200, body))
    assert said in found
    assert bool(said) == bool(found)


def test_the_log_shows_the_mode() -> None:
    journal = (
        "[2026-04-20 10:00:00] Load weight end. type=Qwen3_5\n"
        "[x] Initialized DDTREE draft runner. attention_backend=triton, block_size=16\n"
        "[x] DDTREE draft runner ready. mask_token_id=248070\n"
        "[x] DFLASH fused KV materialization enabled. n_layers=5\n"
        "[x] DFLASH fused KV materialization enabled. n_layers=5\n"
    )
    found = service_checks.mode_lines(journal)
    assert [line.split("] ")[1].split(".")[0] for line in found] == [
        "Initialized DDTREE draft runner",
        "DDTREE draft runner ready",
        "DFLASH fused KV materialization enabled",
    ]


def test_a_slot_of_two_gpus_is_taken_when_one_of_them_is() -> None:
    inventory = parse(
        f"defaults: {{{DEFAULTS}}}\nhosts:\n  ct200:\n    address: 10.1.2.200\n"
        "    slots:\n      gpu23: {gpus: [2, 3], port: 30023}\n"
        "    protected: [{name: wrapper, gpus: [0], reason: not ours}]\n",
        "fleet.yaml",
    )
    place = find_place(inventory, "ct200")
    cards = tuple(replace(unknown(i), uuid=f"GPU-{i}", minor=i) for i in range(4))
    service = service_for(inventory, place, Mode.LINEAR)
    candidate = Candidate(1, service, "e", "u", "", "", staged=False, gpus=("GPU-2", "GPU-3"))
    held = ComputeProcess("GPU-3", 99, 500)
    facts = HostFacts(systemd=True, gpus=Gpus("ok", gpus=cards, processes=(held,)))
    said = refusals(Wish(place, candidate), facts)
    assert any("GPU 3 is used (500 MiB) by pid 99" in text for text in said)
    free = replace(facts, gpus=replace(facts.gpus, processes=()))
    assert not any("GPU" in text for text in refusals(Wish(place, candidate), free))

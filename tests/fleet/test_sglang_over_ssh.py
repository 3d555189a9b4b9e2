"""Backend `sglang` on a real systemd: two versions, two GPUs a slot. A stand-in serves, not SGLang.

The tests share hosts and hand them on as they found them: generation 1, mode linear, serves.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.operator import Operator
from tests.fleet.sglang import environment

pytestmark = pytest.mark.slow

VERSIONS = {"h1": "0.5.16", "h2": "0.5.23"}
SLOT = "{gpus: [2, 3], port: 30023, service: {start_timeout: 60, stop_timeout: 2}}"


class Sglang(Operator):
    """An operator of two hosts whose slot `gpu23` has two GPUs."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        super().__init__(fleet, folder)
        self.fleet = fleet
        self.first = ""
        """What the first deploy has said."""
        self.packages = {n: environment.install(h.root, VERSIONS[n]) for n, h in self.hosts}
        for name in ("m", "d"):
            for _, host in self.hosts:
                environment.model(host.root, name)
        self.settings()

    @property
    def hosts(self) -> list[tuple[str, Any]]:
        return list(self.fleet.hosts.items())

    def settings(self, more: str = "") -> None:
        """Write the inventory, with more settings of the backend."""
        service = "backend: sglang, model: /srv/m, drafter: /srv/d, max_running: 48"
        defaults = f"{service}, sglang: {{grammar_backend: none{more}}}"
        lines = [f"defaults: {{{defaults}}}", "hosts:"]
        for name, host in self.hosts:
            kept = "[{name: wrapper, gpus: [0], port: 30000, reason: not ours}]"
            lines += [
                f"  {name}:",
                f"    address: {host.address}",
                f"    slots: {{gpu23: {SLOT}}}",
                f"    protected: {kept}",
            ]
        self.write(hosts="\n".join(lines) + "\n")

    def deploy(self, name: str, mode: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("deploy", name, "--mode", mode, *words)

    def services(self) -> dict[str, Any]:
        document = json.loads(self.run("status", "--json").stdout)
        return {service["host"]: service for service in document["services"]}

    def facts(self, name: str) -> tuple[Any, ...]:
        service = self.services()[name]
        return tuple(service[key] for key in ("generation", "mode", "health"))


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sglang]:
    specs = [HostSpec(name, gpus=4, disk="16G") for name in VERSIONS]
    with Fleet.boot(specs) as fleet:
        operator = Sglang(fleet, tmp_path_factory.mktemp("operator"))
        environment.model(fleet.hosts["h1"].root, "m", "limit-11")
        first = [operator.begin("deploy", name, "--mode", "linear") for name in VERSIONS]
        said = [process.communicate(timeout=120)[1] for process in first]
        assert [process.returncode for process in first] == [0, 0], said
        operator.first = said[0]
        yield operator
        operator.close()


def test_both_versions_serve_a_slot_of_two_gpus(operator: Sglang) -> None:
    services = operator.services()
    assert {n: (s["version"], s["mode"], s["health"]) for n, s in services.items()} == {
        "h1": ("0.5.16", "linear", "healthy"),
        "h2": ("0.5.23", "linear", "healthy"),
    }
    assert services["h2"]["acceptance_length"] == 3.5
    assert services["h2"]["tokens_per_second"] == 88.0
    unit = operator.fleet.hosts["h1"].says("systemctl cat ddtree-gpu23-linear")
    assert "--tp-size 2" in unit
    assert "--nccl-port 31023" in unit
    assert "--attention-backend triton" in unit
    assert "--grammar-backend none" in unit
    assert "KillMode=mixed" in unit
    again = operator.deploy("h1", "linear")
    assert "nothing to do" in again.stdout


def test_skew_and_the_lowered_limit_are_shown(operator: Sglang) -> None:
    shown = operator.run("status").stdout
    assert "skew: sglang: 0.5.16 on h1; 0.5.23 on h2" in shown
    assert "h1/gpu23: it decodes 11 requests at a time, and 48 were asked" in shown
    said = operator.first
    assert "! it takes 11 requests at a time and 48 were asked" in said
    assert "log: [2026-11-29 10:00:00] Initialized DFLASH draft runner" in said
    assert "mask_token_id=248070" in said


def test_what_is_known_to_die_later_is_refused_before_anything_stops(operator: Sglang) -> None:
    operator.settings(", extra_args: [--enable-gdn-replayssm-spec]")
    refused = operator.deploy("h1", "linear")
    operator.settings()
    assert refused.returncode == 1, refused.stderr
    assert "`--enable-gdn-replayssm-spec` on SGLang 0.5.16" in refused.stderr
    assert operator.facts("h1") == (1, "linear", "healthy")


def test_a_tree_needs_its_plugin(operator: Sglang) -> None:
    refused = operator.deploy("h2", "tree", "--budget", "15")
    assert refused.returncode == 1, refused.stderr
    assert "does not know the algorithm `DDTREE`" in refused.stderr
    assert "needs no plugin" in refused.stderr
    assert operator.facts("h2") == (1, "linear", "healthy")
    environment.add_plugin(operator.packages["h2"])
    swapped = operator.deploy("h2", "tree", "--budget", "15")
    assert swapped.returncode == 0, swapped.stderr
    assert "log: [2026-11-29 10:00:00] DDTREE draft runner ready" in swapped.stderr
    assert operator.facts("h2")[1:] == ("tree", "healthy")
    back = operator.run("rollback", "h2")
    assert back.returncode == 0, back.stderr
    assert operator.facts("h2") == (1, "linear", "healthy")


@pytest.mark.parametrize(
    ("fault", "said"),
    [("dies-on-generate", "has no attribute 'device'"), ("repeats", "repeats one character")],
)
def test_a_server_that_is_ready_and_does_not_generate(
    operator: Sglang, fault: str, said: str
) -> None:
    broken = environment.model(operator.fleet.hosts["h2"].root, fault, fault)
    failed = operator.deploy("h2", "linear", "--model", broken)
    assert failed.returncode == 6, failed.stderr
    assert said in failed.stderr
    assert operator.facts("h2") == (1, "linear", "healthy")


def test_a_server_that_hangs_later_is_seen_by_the_slow_probe(operator: Sglang) -> None:
    assert operator.run("status", "--generate").returncode == 0
    host = operator.fleet.hosts["h2"]
    faults = host.root / "srv/m/faults"
    faults.write_text("refuses")
    assert operator.run("status", "h2").returncode == 0
    hung = operator.run("status", "h2", "--generate")
    faults.write_text("")
    assert hung.returncode == 1
    assert "h2/gpu23: it is ready and does not generate" in hung.stdout

"""Deploy, swap, roll back and stop on host `local`, with real processes and real HTTP."""

import json
import os
import signal

import pytest

from tests.ctl.machine import Machine

pytestmark = pytest.mark.e2e


def test_a_deployed_service_serves_and_status_tells_all_of_it(machine: Machine) -> None:
    done = machine.deploy("tree", "--budget", "16", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["applied"] is True
    service = machine.service()
    wanted = {
        "mode": "tree",
        "budget": 16,
        "topk": 8,
        "port": machine.port,
        "health": "healthy",
        "generation": 1,
        "generation_status": "good",
        "acceptance_length": 3.5,
        "tokens_per_second": 123.0,
        "unit": "ddtree-cpu7-tree.service",
        "problem": "",
    }
    assert {key: service[key] for key in wanted} == wanted
    hosts = machine.status()["hosts"]
    assert isinstance(hosts, list)
    assert hosts[0]["restarts_services"] is False
    assert hosts[0]["supervisor"] == "docker-systemctl-replacement"
    assert "ready: mode=tree" in machine.run("logs", "local").stdout
    document = json.loads(machine.run("logs", "local", "-n", "1", "--json").stdout)
    assert document["unit"] == "ddtree-cpu7-tree.service"
    assert len(document["lines"]) == 1


def test_the_same_deploy_again_changes_nothing(serving: Machine) -> None:
    before = serving.service()
    again = serving.deploy("tree", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["applied"] is False
    assert serving.service()["pid"] == before["pid"]


def stopped(machine: Machine) -> int:
    """The process of the service, which answers nobody from here on."""
    pid = machine.service()["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_service_that_is_too_busy_for_the_probe_is_asked_again_and_not_swapped(
    serving: Machine,
) -> None:
    pid = stopped(serving)
    again = serving.begin("deploy", "local", "--mode", "tree", "--json")
    assert again.stderr is not None
    said = next(line for line in again.stderr if "has not answered" in line)
    assert "it is given 30 s" in said
    os.kill(pid, signal.SIGCONT)
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 0
    assert json.loads(out)["applied"] is False
    assert serving.service()["pid"] == pid


@pytest.mark.slow
def test_a_service_that_never_answers_is_swapped(serving: Machine) -> None:
    pid = stopped(serving)
    again = serving.run("deploy", "local", "--mode", "tree", "--json", timeout=200)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["applied"] is True
    assert serving.service()["pid"] != pid


def test_modes_swap_on_one_port_and_rollback_returns(machine: Machine) -> None:
    machine.deploy("tree", "--budget", "16")
    assert machine.deploy("linear").returncode == 0
    assert machine.service()["mode"] == "linear"
    assert machine.run("rollback", "local").returncode == 0
    service = machine.service()
    assert (service["mode"], service["budget"], service["generation"]) == ("tree", 16, 1)
    assert machine.run("rollback", "--to", "2").returncode == 0
    assert machine.service()["generation"] == 2


def test_rollback_goes_only_to_good_generations(machine: Machine) -> None:
    none = machine.run("rollback", "local")
    assert none.returncode == 2
    assert "no other good generation" in none.stderr
    machine.deploy("tree")
    assert machine.deploy("linear", *machine.model("bad", "exit")).returncode == 6
    refused = machine.run("rollback", "local", "--to", "2")
    assert refused.returncode == 2
    assert "1 (good), 2 (failed)" in refused.stderr
    assert_audited(machine, "deploy", "deploy-done", "deploy", "deploy-failed")


def assert_audited(machine: Machine, *events: str) -> None:
    """The audit log of the machine has exactly `events`, each with who and when."""
    lines = (machine.root / "audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["event"] for entry in entries] == list(events)
    assert all(entry["operator"] and entry["at"] for entry in entries)
    assert "--mode tree" in entries[0]["command"]


def test_a_stopped_slot_stays_stopped_until_the_next_deploy(machine: Machine) -> None:
    machine.deploy("tree")
    assert machine.run("stop", "local").returncode == 0
    assert machine.service()["health"] == "stopped"
    assert machine.run("stop", "local").returncode == 0
    failed = machine.deploy("linear", *machine.model("bad", "exit"))
    assert failed.returncode == 1
    assert machine.service()["health"] == "stopped"
    assert machine.run("rollback").returncode == 0
    assert machine.service()["health"] == "healthy"


def test_a_dry_run_shows_the_steps_and_the_unit_and_touches_nothing(serving: Machine) -> None:
    before = sorted(path for path in serving.folder.rglob("*") if path.is_file())
    planned = serving.deploy("linear", "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)["plan"]
    actions = [step["action"] for step in plan["steps"]]
    assert actions.index("check-model") < actions.index("stop") < actions.index("start")
    assert all(step["reason"] for step in plan["steps"])
    assert "-ExecStart=" in plan["unit_diff"]
    assert "+ExecStart=" in plan["unit_diff"]
    assert plan["back"] == 1
    assert sorted(path for path in serving.folder.rglob("*") if path.is_file()) == before
    assert serving.service()["mode"] == "tree"

"""`ddtreectl router` where there is no router, and plans that say so."""

import json

import pytest

from tests.ctl.machine import Machine, free_port
from tests.ctl.test_deploy_failures import read_until


def with_router(machine: Machine) -> None:
    section = f"router: {{host: local, address: 127.0.0.1, port: {free_port()}}}\n"
    machine.inventory.write_text(section + machine.inventory.read_text())


def test_an_inventory_without_router(machine: Machine) -> None:
    for words in (["status"], ["deploy"], ["sync"], ["stop"], ["forget", "local/cpu7"]):
        done = machine.run("router", *words)
        assert done.returncode == 2, done.stderr
        assert "the inventory has no `router`" in done.stderr


def test_a_router_needs_systemd(machine: Machine) -> None:
    with_router(machine)
    done = machine.run("router", "deploy")
    assert done.returncode == 1
    assert "no systemd runs on `local`" in done.stderr
    assert not (machine.root / "router").exists()


def test_a_router_that_was_never_deployed(machine: Machine) -> None:
    with_router(machine)
    status = machine.run("router", "status", "--json")
    assert status.returncode == 1
    told = json.loads(status.stdout)
    assert (told["state"], told["workers"]) == ("absent", [])
    unknown = machine.run("router", "forget", "local/gpu9")
    assert unknown.returncode == 2
    assert "there are: local/cpu7" in unknown.stderr
    plan = machine.run("deploy", "local", "--mode", "tree", "--dry-run", "--json")
    found = json.loads(plan.stdout)["plan"]
    assert not {"take-out", "put-in"} & {step["action"] for step in found["steps"]}
    assert any("`ddtreectl router deploy`" in note for note in found["notes"])
    assert not (machine.root / "router").exists()


def test_what_serves_elsewhere_than_the_inventory_has_it_is_left_out(machine: Machine) -> None:
    machine.deploy("tree")
    with_router(machine)
    elsewhere = free_port()
    inventory = machine.inventory.read_text().replace(f"port: {machine.port}", f"port: {elsewhere}")
    machine.inventory.write_text(inventory)
    synced = machine.run("router", "sync", "--json")
    assert synced.returncode == 3, synced.stderr
    told = json.loads(synced.stdout)
    why = f"it listens on port {machine.port}, and the router asks port {elsewhere}"
    assert told["out_of_reach"] == {"local/cpu7": why}
    assert not told["put_in"]
    shown = machine.run("router", "sync")
    assert why in shown.stdout
    assert "`ddtreectl deploy local --slot cpu7 --mode" in shown.stdout
    again = machine.run("rollback", "local", "--to", "1")
    assert again.returncode == 1
    assert why in again.stderr
    assert "nothing was changed" in again.stderr


@pytest.mark.slow
def test_what_comes_back_and_the_router_cannot_reach_stays_out(machine: Machine) -> None:
    machine.deploy("tree")
    operator = machine.begin("deploy", "local", "--mode", "linear")
    read_until(operator, "✓ stop")
    operator.kill()
    operator.wait()
    with_router(machine)
    wanted = f"port: {machine.port}, address: 127.0.0.2"
    inventory = machine.inventory.read_text().replace(f"port: {machine.port}", wanted)
    machine.inventory.write_text(inventory)
    done = machine.run("rollback", "local")
    assert done.returncode == 0, done.stderr
    assert "local/cpu7 stays out of the router: it listens on 127.0.0.1 alone" in done.stderr
    listed = json.loads((machine.root / "router/slots.json").read_text())["workers"]
    assert listed == {}


def test_a_watch_shows_the_router_too(machine: Machine) -> None:
    with_router(machine)
    watched = machine.run("status", "--watch", "--interval", "0", "--count", "2", "--json")
    assert watched.returncode == 1
    rounds = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [told["router"]["state"] for told in rounds] == ["absent", "absent"]
    assert [[host["host"] for host in told["hosts"]] for told in rounds] == [["local"]] * 2
    shown = machine.run("status", "--watch", "--count", "1")
    assert "router on local" in shown.stdout
    named = machine.run("status", "local", "--watch", "--count", "1", "--json")
    assert "router" not in json.loads(named.stdout)

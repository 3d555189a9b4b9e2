"""`ddtreectl router` where there is no router, and plans that say so."""

import json

from tests.ctl.machine import Machine, free_port


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

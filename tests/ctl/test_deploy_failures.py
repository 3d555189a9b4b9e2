"""A deploy that fails leaves the old service serving, or brings it back, and says why."""

import http.server
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.ctl.machine import Machine

pytestmark = pytest.mark.e2e


def assert_generation_1_serves(machine: Machine) -> None:
    status = machine.status()
    (service,) = status["services"]
    assert (service["generation"], service["health"]) == (1, "healthy"), service
    assert (service["mode"], service["budget"]) == ("tree", 16)
    (host,) = status["hosts"]
    assert (host["lock"], host["interrupted"]) == (None, [])
    assert len(machine.processes_of_slot()) == 1


def pid_of(machine: Machine) -> object:
    return machine.service()["pid"]


# ---- failures before anything is touched: the old process goes on ----


def test_a_model_folder_that_is_not_there(serving: Machine) -> None:
    before = pid_of(serving)
    failed = serving.deploy("linear", "--model", "/no/such", "--drafter", "/no/such")
    assert failed.returncode == 1
    assert "the model `/no/such` is no folder with a `config.json`" in failed.stderr
    assert pid_of(serving) == before
    assert_generation_1_serves(serving)


def test_a_model_that_cannot_be_loaded(serving: Machine) -> None:
    before = pid_of(serving)
    failed = serving.deploy("linear", *serving.model("bad", "bad-model"))
    assert failed.returncode == 1
    assert "tensor `lm_head.weight` is missing" in failed.stderr
    assert pid_of(serving) == before
    assert_generation_1_serves(serving)


def test_a_unit_file_of_someone_else(serving: Machine) -> None:
    path = serving.folder / "etc/systemd/system/ddtree-cpu7-shadow.service"
    path.write_text("[Service]\nExecStart=/bin/true\n")
    failed = serving.deploy("linear")
    assert failed.returncode == 1
    assert "was not written by ddtreectl" in failed.stderr
    assert path.read_text().startswith("[Service]")
    path.unlink()
    assert_generation_1_serves(serving)


def test_a_generation_that_was_edited_is_not_rolled_back_to(machine: Machine) -> None:
    machine.deploy("tree")
    machine.deploy("linear")
    for name in ("ddtree-cpu7-tree.service", "environment"):
        staged = machine.root / "slots/cpu7/generations/000001" / name
        before = staged.read_bytes()
        staged.write_bytes(before + b"# edited \xff\n")
        failed = machine.run("rollback")
        assert failed.returncode == 1
        assert f"{name} was changed after its deploy" in failed.stderr
        staged.write_bytes(before)
    assert machine.service()["generation"] == 2


@contextmanager
def listening(port: int) -> Iterator[None]:
    server = http.server.HTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_port_taken_by_a_foreign_process(machine: Machine) -> None:
    with listening(machine.port):
        failed = machine.deploy("tree")
        assert failed.returncode == 1
        named = f"port {machine.port} is taken by pid {os.getpid()} (user root): "
        assert named in failed.stderr
        assert "not ours to stop" in failed.stderr
    assert machine.deploy("tree").returncode == 0


# ---- failures after the stop: the old generation comes back ----


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("exit", "ended"),
        ("die-after-ready", "ended"),
        ("wrong-mode", "the service says mode `ar`, and `linear` was deployed"),
    ],
)
def test_an_unhealthy_service_is_taken_back(serving: Machine, fault: str, said: str) -> None:
    failed = serving.deploy("linear", *serving.model("bad", fault), "--json")
    assert failed.returncode == 6, failed.stderr
    assert said in failed.stderr
    assert "generation 1 serves again" in failed.stderr
    error = json.loads(failed.stdout)["error"]
    assert error["exit_code"] == 6
    assert any("starting mode=linear" in line for line in error["evidence"])
    assert_generation_1_serves(serving)
    newest = max((serving.root / "slots/cpu7/generations").iterdir())
    assert json.loads((newest / "state.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("fault", "said"),
    [("never-ready", "not ready within 2 s"), ("no-listen", "does not listen on port")],
)
def test_a_service_that_is_never_ready(serving: Machine, fault: str, said: str) -> None:
    serving.start_timeout = 2
    serving.write_inventory()
    failed = serving.deploy("linear", *serving.model("bad", fault))
    assert failed.returncode == 6, failed.stderr
    assert said in failed.stderr
    assert_generation_1_serves(serving)


def test_a_new_budget_of_the_same_mode_is_taken_back_too(serving: Machine) -> None:
    failed = serving.deploy("tree", "--budget", "64", *serving.model("bad", "wrong-text"))
    assert failed.returncode == 6, failed.stderr
    assert "mode `tree` changes the text of the model" in failed.stderr
    assert_generation_1_serves(serving)
    unit = (serving.folder / "etc/systemd/system/ddtree-cpu7-tree.service").read_text()
    assert "Generation=1" in unit


def test_a_first_deploy_that_fails_leaves_the_slot_empty(machine: Machine) -> None:
    failed = machine.deploy("tree", *machine.model("bad", "wrong-text"))
    assert failed.returncode == 1
    assert "no good generation to return to" in failed.stderr
    assert machine.processes_of_slot() == []
    assert machine.deploy("tree").returncode == 0


def test_records_that_cannot_be_written_do_not_keep_the_old_service_down(machine: Machine) -> None:
    machine.deploy("tree", "--budget", "16")
    operator = machine.begin(
        "deploy", "local", "--mode", "linear", *machine.model("b", "wrong-text")
    )
    read_until(operator, "✓ stop")
    for state in machine.root.glob("slots/cpu7/generations/*/state.json"):
        state.unlink()
        state.mkdir()  # as on a full disk, what is written there does not get there
    _, said = operator.communicate(timeout=60)
    assert operator.returncode == 6, said
    assert said.count("state.json` on `local` cannot be written") == 2
    assert "generation 1 serves again" in said
    service = machine.service()
    assert (service["mode"], service["health"]) == ("tree", "healthy")


def test_a_process_that_outlived_its_unit_is_stopped_as_ours(serving: Machine) -> None:
    status = serving.folder / "run/ddtree-cpu7-tree.service.status"
    status.unlink()  # the service manager forgets its process
    swapped = serving.deploy("linear")
    assert swapped.returncode == 0, swapped.stderr
    assert len(serving.processes_of_slot()) == 1


# ---- operators ----


def plan_titles(machine: Machine, mode: str) -> list[str]:
    """The titles of the steps of a deploy, from its own plan."""
    planned = machine.deploy(mode, "--dry-run", "--json")
    return [step["title"] for step in json.loads(planned.stdout)["plan"]["steps"]]


def read_until(process: "subprocess.Popen[str]", text: str) -> None:
    """Read what an operator's process reports until a line holds `text`."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"the process ended before it said {text!r}")


@pytest.mark.slow
def test_an_interrupt_in_any_state_leaves_the_old_service_serving(serving: Machine) -> None:
    signals = itertools.cycle([signal.SIGINT, signal.SIGTERM])
    # One step of each state that the slot can be in: not touched yet, empty, starting, started.
    states = ("check model", "stop", "start", "health 2")
    for title in [title for title in plan_titles(serving, "linear") if title.startswith(states)]:
        number = next(signals)
        before = pid_of(serving)
        operator = serving.begin("deploy", "local", "--mode", "linear")
        read_until(operator, f"✓ {title}")
        operator.send_signal(number)
        _, said = operator.communicate(timeout=60)
        assert operator.returncode in {1, 6}, (title, said)
        assert f"interrupted by {number.name}" in said, title
        assert_generation_1_serves(serving)
        assert (pid_of(serving) == before) == title.startswith("check model"), title


@pytest.mark.slow
def test_an_operator_killed_in_mid_swap_is_recovered_from(serving: Machine) -> None:
    commands = itertools.cycle(["deploy", "rollback"])
    titles = plan_titles(serving, "linear")
    after_stop = [title for title in titles if title.startswith(("stop", "start"))]
    for title, command in zip(after_stop, commands, strict=False):
        operator = serving.begin("deploy", "local", "--mode", "linear")
        read_until(operator, f"✓ {title}")
        operator.kill()
        operator.wait()
        status = serving.run("status")
        assert status.returncode == 1
        assert "was interrupted" in status.stdout
        if command == "rollback":
            done = serving.run("rollback", "local")
        else:
            done = serving.deploy("shadow", "--model", "/no/such", "--drafter", "/no/such")
        assert done.returncode == (0 if command == "rollback" else 1), done.stderr
        assert "setting it right" in done.stderr
        assert_generation_1_serves(serving)


def test_stop_settles_what_a_killed_operator_was_starting(machine: Machine) -> None:
    machine.start_timeout = 60
    machine.write_inventory()
    machine.deploy("tree")
    slow = machine.model("a", "never-ready")
    operator = machine.begin("deploy", "local", "--mode", "linear", *slow)
    read_until(operator, "✓ start")
    operator.kill()
    operator.wait()
    stopped = machine.run("stop", timeout=40)  # well before the start would have given up
    assert stopped.returncode == 0, stopped.stderr
    assert machine.processes_of_slot() == []
    status = machine.run("status")
    assert status.returncode == 0
    assert "stopped" in status.stdout
    assert machine.run("rollback").returncode == 0
    assert (machine.service()["generation"], machine.service()["health"]) == (1, "healthy")


def test_two_operators_at_once(serving: Machine) -> None:
    serving.start_timeout = 15
    serving.write_inventory()
    first = serving.begin("deploy", "local", "--mode", "linear", *serving.model("a", "never-ready"))
    read_until(first, "✓ start")
    second = serving.deploy("shadow")
    assert second.returncode == 5
    assert f"(pid {first.pid}, since " in second.stderr
    assert "--mode linear" in second.stderr
    locked = serving.run("status")
    assert f"pid {first.pid}" in locked.stdout
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 6
    assert_generation_1_serves(serving)


def test_a_second_interrupt_does_not_stop_the_way_back(serving: Machine) -> None:
    operator = serving.begin("deploy", "local", "--mode", "linear")
    read_until(operator, "✓ stop")
    operator.send_signal(signal.SIGINT)
    read_until(operator, "bringing generation 1 back")
    operator.send_signal(signal.SIGINT)
    _, said = operator.communicate(timeout=60)
    assert operator.returncode == 6, said
    assert_generation_1_serves(serving)


def test_the_service_outlives_the_session_of_the_operator(machine: Machine) -> None:
    command = machine.command("deploy", "local", "--mode", "tree")
    operator = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert operator.wait(timeout=60) == 0
    with suppress(ProcessLookupError):
        os.killpg(operator.pid, signal.SIGKILL)  # what a closed terminal would take with it
    assert machine.service()["health"] == "healthy"


def test_a_service_that_ended_is_seen_and_deployed_again(serving: Machine) -> None:
    (pid,) = serving.processes_of_slot()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while serving.processes_of_slot() and time.monotonic() < deadline:
        time.sleep(0.05)
    status = serving.run("status")
    assert status.returncode == 1
    assert serving.service()["health"] == "failed"
    assert serving.run("stop").returncode == 0  # gives it up: it does not start at boot either
    assert serving.service()["health"] == "stopped"
    again = serving.deploy("tree", "--budget", "16")
    assert again.returncode == 0, again.stderr
    assert serving.service()["health"] == "healthy"

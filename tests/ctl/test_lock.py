"""The lock of a host: one operator at a time, and never one for ever."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtreectl.apply import lock as lock_module
from ddtreectl.apply.interrupts import InterruptedByOperatorError, Interrupts
from ddtreectl.apply.lock import STALE_AFTER, HostLock, stale
from ddtreectl.apply.operator import Operator, current, start_ticks
from ddtreectl.apply.report import Report
from ddtreectl.errors import LockedError
from ddtreectl.facts.record_files import parse_lock
from ddtreectl.hosts.local import LocalHost
from ddtreectl.hosts.protocol import Result
from ddtreectl.inventory.layout import Layout

QUIET = Report(lambda text: None)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path / "root"), "/e", "/u")


@pytest.fixture
def interrupts() -> Interrupts:
    return Interrupts(lambda text: None)


def lock_of(layout: Layout, operator: Operator | None = None) -> HostLock:
    return HostLock(LocalHost("here"), layout, operator or current())


@pytest.fixture
def dead_process() -> tuple[int, int]:
    """Pid and start time of a process that has ended."""
    process = subprocess.Popen(["sleep", "60"])
    ticks = start_ticks(process.pid)
    assert ticks is not None
    process.kill()
    process.wait()
    return process.pid, ticks


def test_a_lock_names_its_owner_and_goes_with_the_block(
    layout: Layout, interrupts: Interrupts
) -> None:
    with lock_of(layout).held(interrupts, QUIET):
        content = json.loads(Path(layout.lock).read_text())
        assert content["pid"] == os.getpid()
        assert content["command"]
    assert not Path(layout.lock).exists()


def test_a_second_operator_is_told_who_works(layout: Layout, interrupts: Interrupts) -> None:
    with (
        lock_of(layout).held(interrupts, QUIET),
        pytest.raises(LockedError, match=rf"locked by .*\(pid {os.getpid()}, since "),
        lock_of(layout).held(interrupts, QUIET),
    ):
        raise AssertionError("two operators hold one lock")
    with lock_of(layout).held(interrupts, QUIET):
        pass


def test_a_failure_in_the_block_releases_the_lock(layout: Layout, interrupts: Interrupts) -> None:
    with pytest.raises(ZeroDivisionError), lock_of(layout).held(interrupts, QUIET):
        _ = 1 // 0
    assert not Path(layout.lock).exists()


def test_a_signal_while_the_lock_is_taken_leaves_none(
    layout: Layout, interrupts: Interrupts
) -> None:
    class Interrupted(LocalHost):
        """A host on which a signal comes while the first command runs."""

        def run(self, argv: Sequence[str], **options: Any) -> Result:
            if not interrupts._raised:
                interrupts._handle("SIGINT")
            done = super().run(argv, **options)
            taken.append(Path(layout.lock).exists())
            return done

    taken: list[bool] = []
    lock = HostLock(Interrupted("here"), layout, current())
    with pytest.raises(InterruptedByOperatorError), lock.held(interrupts, QUIET):
        pytest.fail("it went on")
    assert taken == [True, False]


def test_the_lock_of_a_dead_process_is_taken_over(
    layout: Layout, interrupts: Interrupts, dead_process: tuple[int, int]
) -> None:
    gone = replace(current(), pid=dead_process[0], ticks=dead_process[1])
    abandoned = lock_of(layout, gone)
    abandoned._try_to_acquire()
    lock = lock_of(layout)
    with lock.held(interrupts, QUIET):
        assert lock.taken_over is not None
        assert lock.taken_over.pid == dead_process[0]
        assert json.loads(Path(layout.lock).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\x00", b"[" * 100_000])
def test_a_lock_that_cannot_be_read_is_taken_over_in_time(
    layout: Layout, interrupts: Interrupts, content: bytes
) -> None:
    path = Path(layout.lock)
    path.parent.mkdir()
    path.write_bytes(content)
    with (
        pytest.raises(LockedError, match="by someone whose lock file cannot be read"),
        lock_of(layout).held(interrupts, QUIET),
    ):
        raise AssertionError("a fresh lock was taken over")
    os.utime(path, (1000, 1000))
    with lock_of(layout).held(interrupts, QUIET):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_pid_that_was_used_again_is_not_the_owner() -> None:
    me = current()
    owner = parse_lock({"host": me.host, "boot": me.boot, "pid": me.pid, "ticks": me.ticks}, 1e6)
    assert not stale(owner, me)
    assert stale(replace(owner, ticks=me.ticks - 1), me)


def test_the_lock_of_another_machine_is_stale_when_it_is_not_renewed() -> None:
    me = current()
    owner = parse_lock({"host": "elsewhere", "boot": "x", "pid": 1, "ticks": 1}, 0.0)
    assert not stale(owner, me)
    assert not stale(replace(owner, age=STALE_AFTER), me)
    assert stale(replace(owner, age=STALE_AFTER + 1), me)


def test_the_owner_renews_its_lock(
    layout: Layout, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "RENEW_EVERY", 0.05)
    with lock_of(layout).held(interrupts, QUIET):
        os.utime(layout.lock, (1000, 1000))
        wait_until(lambda: Path(layout.lock).stat().st_mtime > 1000)


def test_a_lock_that_cannot_be_renewed_is_not_lost(
    layout: Layout, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "RENEW_EVERY", 0.05)
    lock = lock_of(layout)
    guard = Path(layout.root) / lock_module.GUARD
    with lock.held(interrupts, QUIET):
        wait_until(lambda: is_made_a_folder(guard))
        os.utime(layout.lock, (1000, 1000))
        assert not lock._guarded("true").ok
        guard.rmdir()
        wait_until(lambda: Path(layout.lock).stat().st_mtime > 1000)
        lock.check()


def test_an_owner_whose_lock_was_taken_stops(
    layout: Layout, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "RENEW_EVERY", 0.05)
    lock = lock_of(layout)
    with lock.held(interrupts, QUIET):
        lock.check()
        Path(layout.lock).write_text('{"token": "another"}')
        wait_until(lambda: lock._lost)
        with pytest.raises(LockedError, match="no longer this command's"):
            lock.check()
    assert Path(layout.lock).exists()  # the other operator's lock is not ours to remove


def is_made_a_folder(guard: Path) -> bool:
    """Whether no renewal made the file anew between its end and the folder's beginning."""
    guard.unlink(missing_ok=True)
    try:
        guard.mkdir()
    except FileExistsError:
        return False
    return True


def wait_until(condition: "object") -> None:
    assert callable(condition)
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_of_many_operators_one_gets_the_lock(layout: Layout) -> None:
    won: list[HostLock] = []
    refused: list[LockedError] = []

    def compete() -> None:
        lock = lock_of(layout)
        try:
            lock._try_to_acquire()
        except LockedError as error:
            refused.append(error)
        else:
            won.append(lock)

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(refused)) == (1, 7)


def test_a_signal_waits_for_a_shielded_block(interrupts: Interrupts) -> None:
    done = []

    def work() -> None:
        with interrupts.watch(), interrupts.shield():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("finished")

    with pytest.raises(InterruptedByOperatorError, match="SIGTERM"):
        work()
    assert done == ["finished"]


def test_only_the_first_signal_interrupts(interrupts: Interrupts) -> None:
    with interrupts.watch():
        with pytest.raises(InterruptedByOperatorError):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # cleaning up goes on


def test_a_fenced_command_runs_only_while_the_lock_is_held(
    layout: Layout, interrupts: Interrupts, tmp_path: Path
) -> None:
    lock = lock_of(layout)
    host = LocalHost("here").fenced(lock.fence)
    done, file = tmp_path / "done", tmp_path / "file"
    with lock.held(interrupts, QUIET):
        assert (
            host.run(["sh", "-c", f"echo $0 >{done}; exit 3", "a b"], deadline=10).returncode == 3
        )
        assert done.read_text() == "a b\n"
        host.put(str(file), b"old")
        Path(layout.lock).unlink()
        with lock_of(layout).held(interrupts, QUIET):
            with pytest.raises(LockedError, match="the lock of `here` is no longer this command's"):
                host.run(["rm", str(done)], deadline=10)
            with pytest.raises(LockedError):
                host.put(str(file), b"new")
    assert (done.exists(), file.read_bytes()) == (True, b"old")


def test_breaking_a_lock_ends_the_commands_that_run_under_it(
    layout: Layout, interrupts: Interrupts
) -> None:
    lock = lock_of(layout)
    host = LocalHost("here").fenced(lock.fence)
    with lock.held(interrupts, QUIET):
        result: list[int] = []
        thread = threading.Thread(
            target=lambda: result.append(host.run(["sleep", "61"], deadline=60).returncode)
        )
        thread.start()
        owner = parse_lock(json.loads(Path(layout.lock).read_text()), 0.0)
        until_runs(owner.token)
        assert lock_of(layout).broken(owner)
        thread.join(20)
        assert result == [-signal.SIGKILL]
        assert not Path(layout.lock).exists()


def until_runs(token: str) -> None:
    """Wait until a command that carries the token has replaced its shell."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                marked = f"DDTREECTL_LOCK={token}".encode() in (path / "environ").read_bytes()
                if marked and (path / "comm").read_text() == "sleep\n":
                    return
        time.sleep(0.01)
    raise AssertionError("the command does not run")


def test_waiting_for_another_operator(layout: Layout, interrupts: Interrupts) -> None:
    said: list[str] = []
    waiting = HostLock(LocalHost("here"), layout, current(), wait=60)
    first = lock_of(layout)

    def release() -> None:
        Path(layout.lock).unlink()

    with first.held(interrupts, QUIET):
        timer = threading.Timer(0.3, release)
        timer.start()
        with waiting.held(interrupts, Report(said.append)):
            assert waiting.fence.token in Path(layout.lock).read_text()
        timer.join()
    assert "take the lock of `here`" in said[0]


def test_work_in_a_thread_ends_at_its_next_look(interrupts: Interrupts) -> None:
    def shielded() -> None:
        with interrupts.shield():
            interrupts.ask_to_stop("SIGINT")
            interrupts.check()  # what must be finished goes on

    with pytest.raises(InterruptedByOperatorError, match="SIGINT"):
        shielded()
    interrupts.check()  # it is said once
    other = Interrupts(lambda text: None)
    other.ask_to_stop("SIGTERM")
    with pytest.raises(InterruptedByOperatorError, match="SIGTERM"):
        other.sleep(30)

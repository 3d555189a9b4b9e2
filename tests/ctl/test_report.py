"""How far a transfer has come: lines in a file, a bar on a terminal."""

import io
import threading

import pytest

from ddtreectl.apply.report import Report
from ddtreectl.cli.progress_bar import ProgressBar
from ddtreectl.cli.terminal import SafeConsole

MIB = 1 << 20


def test_a_line_for_each_tenth() -> None:
    said: list[str] = []
    report = Report(said.append, line_every=0.0)
    with report.step("bring 3 of 3 wheels"):
        for done in range(26):
            report.amount(done * 8 * MIB, 200 * MIB)
    lines = [line for line in said if line.startswith("  … ")]
    assert len(lines) == 10
    assert lines[0] == "  … bring 3 of 3 wheels: 24 of 200 MiB, 12 %"
    assert lines[-1] == "  … bring 3 of 3 wheels: 200 of 200 MiB, 100 %"
    assert said[-1].startswith("  ✓ bring 3 of 3 wheels (")


@pytest.mark.parametrize("total", [0, 5])
def test_next_to_nothing_is_no_more_than_a_step(total: int) -> None:
    said: list[str] = []
    report = Report(said.append)
    with report.step("bring 0 of 3 wheels"):
        report.amount(total, total)
    assert len(said) == 1


def terminal() -> tuple[io.StringIO, ProgressBar]:
    screen = io.StringIO()
    console = SafeConsole(file=screen, force_terminal=True, width=120, legacy_windows=False)
    return screen, ProgressBar(console)


def test_a_bar_gives_way_to_lines() -> None:
    screen, bar = terminal()
    report = Report(lambda line: screen.write(f"LINE {line}\n") and None, bar)
    with report.step("copy \x1b[2J[red]files"):
        report.amount(0, 64 * MIB)
        assert bar.shown
        report.amount(32 * MIB, 64 * MIB)
        report.say("  ! half")
        assert not bar.shown
        report.amount(48 * MIB, 64 * MIB)
    assert not bar.shown
    shown = screen.getvalue()
    assert " 50%" in shown
    assert "32.0/64.0 MiB" in shown
    assert r"copy \x1b[2J[red]files" in shown
    before, _, after = shown.rpartition("LINE   ✓")
    assert "LINE   ! half" in before
    assert "━" not in after


def test_no_sign_of_life_beside_a_bar_that_moves() -> None:
    looks = threading.Semaphore(0)
    beaten = threading.Event()
    said: list[str] = []

    class Watched(ProgressBar):
        @property
        def shown(self) -> bool:
            looks.release()
            return super().shown

    def write(line: str) -> None:
        said.append(line)
        beaten.set()

    bar = Watched(SafeConsole(file=io.StringIO(), force_terminal=True))
    report = Report(write, bar, beat=0.01)
    with report.step("copy"):
        report.amount(1, 2)
        for _ in range(3):
            assert looks.acquire(timeout=30)
        assert said == []
        bar.close()
        assert beaten.wait(30)
    assert said[0].startswith("  … copy: ")

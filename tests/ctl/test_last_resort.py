"""Whatever happens, an operator reads one message and no traceback."""

import os
import subprocess
import sys

import pytest

from ddtreectl.cli import main
from tests.ctl.machine import REPOSITORY

COMMAND = [sys.executable, "-m", "ddtreectl", "--inventory", "inventories/local.yaml"]


def ddtreectl(*words: str | bytes, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_arguments_that_are_no_text_are_a_usage_error() -> None:
    model = (b"--model", b"/srv/\xff", b"--drafter", b"/srv/\xff")
    refused = ddtreectl("deploy", "local", "--mode", "tree", "--dry-run", *model)
    assert refused.returncode == 2
    assert r"error: the argument '/srv/\udcff' is not UTF-8 text" in refused.stderr


def test_a_terminal_that_knows_no_greek_gets_its_table() -> None:
    found = ddtreectl("status", PYTHONIOENCODING="ascii")
    assert r"\u03c4" in found.stdout
    assert "Traceback" not in found.stderr


def test_a_reader_that_has_gone_is_no_failure_to_tell() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    render = [*COMMAND, "render", "local", "--mode", "tree"]
    done = subprocess.run(
        render, stdout=writing, stderr=subprocess.PIPE, cwd=REPOSITORY, timeout=60, check=False
    )
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize("asked", [False, True])
def test_a_mistake_of_ddtreectl_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: bool
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise KeyError("slots")

    monkeypatch.setattr(main, "app", broken)
    if asked:
        monkeypatch.setenv("DDTREECTL_TRACEBACK", "1")
    assert main.run(["status", "--json"]) == 1
    told = capsys.readouterr()
    assert "error: ddtreectl failed: KeyError('slots')" in told.err
    assert "hint: this is a mistake in ddtreectl" in told.err
    assert '"exit_code": 1' in told.out
    assert ("Traceback" in told.err) == asked

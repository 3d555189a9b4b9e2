"""The table of commands: what help costs, and that each entry is there."""

import subprocess
import sys

import pytest

from ddtreectl.cli import commands

HEAVY = ("paramiko", "pydantic", "jinja2", "ruamel", "rich", "cryptography", "asyncio", "http")


@pytest.mark.parametrize("words", [["--help"], ["--version"], []], ids=" ".join)
def test_help_imports_nothing_that_only_commands_need(words: list[str]) -> None:
    program = (
        "import sys\n"
        "from ddtreectl.cli.main import run\n"
        "run(sys.argv[1:])\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    assert "ddtreectl" in done.stdout + done.stderr
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "typer" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", sorted(commands.COMMANDS))
def test_each_command_of_the_table_is_there(name: str) -> None:
    loaded = commands.load(name)
    assert loaded.help
    assert commands.COMMANDS[name].help.endswith(".")


@pytest.mark.parametrize(
    "name",
    ["deploy", "drain", "migrate", "provision", "prune", "rollback", "stop", "uncordon"],
)
def test_whoever_meets_a_lock_may_wait_for_it(name: str) -> None:
    assert "--lock-wait" in {option for p in commands.load(name).params for option in p.opts}


def test_a_misspelt_command_is_told_what_it_may_mean(capsys: pytest.CaptureFixture[str]) -> None:
    from ddtreectl.cli.main import run

    assert run(["stauts"]) == 2
    assert "Did you mean 'status'" in capsys.readouterr().err

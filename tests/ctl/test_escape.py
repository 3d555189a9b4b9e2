"""Values survive each place of a unit: systemd itself reads them back."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtreectl.units.escape import (
    EscapeError,
    environment,
    environment_file,
    exec_line,
    setting,
)

SYSTEMD = Path("/lib/systemd/systemd")
GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")
NOBODY = 65534

# Everything that a path or an argument may hold: all of Unicode but NUL and lone surrogates.
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
nasty = st.text(st.sampled_from("%$\\\"'; \t\n{}`#=~*!@:+-abn0x"), max_size=12)
values = st.one_of(words, nasty)
one_line = values.filter(lambda value: value.isprintable())


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that an unprivileged systemd can read; pytest's own is closed to it."""
    path = Path(tempfile.mkdtemp(prefix="ddtree-units-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def unquoted(text: str) -> str:
    """What systemd means by a word that it prints: its quotes and escapes undone."""
    if text.startswith('"'):
        text = text[1:-1]
    named = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}

    def undo(match: "re.Match[str]") -> str:
        if match[1]:
            return chr(int(match[1], 8))
        return named.get(match[2], match[2])

    return re.sub(r"\\(?:([0-7]{3})|(.))", undo, text)


def as_systemd_reads(folder: Path, lines: list[str]) -> list[str]:
    """The lines of systemd's own dump of a unit with `lines` in its [Service] section."""
    unit = folder / "probe.service"
    unit.write_text("[Service]\nType=oneshot\nExecStart=/bin/true\n" + "\n".join(lines) + "\n")
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    done = subprocess.run(
        [
            *(drop if os.geteuid() == 0 else []),
            str(SYSTEMD),
            "--test",
            "--system",
            "--unit=probe.service",
        ],
        env={"SYSTEMD_UNIT_PATH": f"{folder}:", "HOME": "/", "LANG": "C.UTF-8"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    text = done.stdout.decode()
    _, found, dump = text.partition("-> Unit probe.service:\n")
    assert found, done.stderr.decode()[-2000:]
    return re.split(r"\n\t-> Unit ", dump)[0].split("\n")


needs_systemd = pytest.mark.skipif(not SYSTEMD.exists(), reason="no systemd is installed")
needs_generator = pytest.mark.skipif(not GENERATOR.exists(), reason="no systemd is installed")


@needs_systemd
@settings(max_examples=15)
@given(arguments=st.lists(values, min_size=1, max_size=40))
def test_systemd_starts_exactly_the_words(folder: Path, arguments: list[str]) -> None:
    lines = [f"ExecStart={exec_line(['/bin/true', word, 'end'])}" for word in arguments]
    dump = "\n".join(as_systemd_reads(folder, lines))
    commands = re.findall(r"\t\t\tCommand Line: /bin/true (.*) end$", dump, re.MULTILINE)
    # systemd doubles no `$`: it expands variables when it starts the program, and `$$` means `$`.
    assert [unquoted(command).replace("$$", "$") for command in commands] == arguments


@needs_systemd
@settings(max_examples=15)
@given(texts=st.lists(one_line, min_size=1, max_size=40))
def test_systemd_sets_exactly_the_variables(folder: Path, texts: list[str]) -> None:
    variables = {f"V{index}": text for index, text in enumerate(texts)}
    lines = [f"Environment={value}" for value in environment(variables)]
    dump = as_systemd_reads(folder, lines)
    shown = [line.removeprefix("\t\tEnvironment: ") for line in dump if "\tEnvironment: " in line]
    assert dict(line.split("=", 1) for line in shown) == variables


@needs_systemd
def test_an_environment_variable_may_hold_a_newline(folder: Path) -> None:
    (value,) = environment({"A": "one\ntwo"})
    dump = as_systemd_reads(folder, [f"Environment={value}"])
    assert dump[dump.index("\t\tEnvironment: A=one") + 1] == "two"


@needs_generator
@settings(max_examples=15)
@given(texts=st.lists(values, min_size=1, max_size=40))
def test_systemd_reads_exactly_the_file(folder: Path, texts: list[str]) -> None:
    # The generator expands `$` and skips empty values, which EnvironmentFile= does not; control
    # characters have no escape.
    clean = [re.sub(r"[$\x00-\x08\x0b-\x1f\x7f]", "", text) or "none" for text in texts]
    variables = {f"V{index}": text for index, text in enumerate(clean)}
    config = folder / "environment.d"
    config.mkdir(exist_ok=True)
    (config / "probe.conf").write_text(environment_file(variables))
    done = subprocess.run(
        [str(GENERATOR)],
        env={"XDG_CONFIG_HOME": str(folder), "HOME": str(folder), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = dict(line.split("=", 1) for line in done.stdout.split("\n") if line)
    found = {name: unquoted(text) for name, text in shown.items() if name.startswith("V")}
    assert found == variables


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "not an absolute path"),
        (["true"], "not an absolute path"),
        (["/bin/true", "a\0b"], "NUL"),
    ],
)
def test_what_a_command_line_cannot_hold(argv: list[str], said: str) -> None:
    with pytest.raises(EscapeError, match=said):
        exec_line(argv)


def test_what_other_places_cannot_hold() -> None:
    for value in ("a\nb", "a\x1b", "ends in \\"):
        with pytest.raises(EscapeError):
            setting(value)
    for name in ("", "1A", "A B", "A="):
        with pytest.raises(EscapeError, match="no name"):
            environment({name: "x"})
    with pytest.raises(EscapeError, match="control character"):
        environment_file({"A": "\x07"})


def test_plain_words_stay_readable() -> None:
    assert exec_line(["/bin/x", "--port", "30001"]) == "/bin/x --port 30001"
    assert exec_line(["/bin/x", "100%", "$HOME", "a b"]) == '/bin/x 100%% $$HOME "a b"'

"""What others have written reaches the terminal as text and not as commands."""

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape
from rich.table import Table

from ddtreectl.cli import output
from ddtreectl.cli.terminal import SafeConsole, json_text, printable
from ddtreectl.errors import StepError

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\rover\u202egnp.exe"


def obeyed(text: str) -> list[str]:
    """The characters of a text that a terminal obeys; line feeds and tabs are layout."""
    return [c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"] + [
        c for c in text if unicodedata.bidirectional(c) in {"LRE", "RLE", "LRO", "RLO", "LRI"}
    ]


@given(st.text())
def test_nothing_of_a_text_is_obeyed(text: str) -> None:
    assert obeyed(printable(text)) == []
    assert json.loads(json_text(json.dumps({"a": text}, ensure_ascii=False))) == {"a": text}
    assert obeyed(json_text(json.dumps(text, ensure_ascii=False))) == []


def test_text_that_is_none_of_that_stays() -> None:
    assert printable("τ 4.5\tgrün ✓ 日本\n") == "τ 4.5\tgrün ✓ 日本\n"


def test_every_string_of_a_console_is_printable() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=False, width=200)
    table = Table(EVIL)
    table.add_row(escape(EVIL))
    console.print(escape(EVIL), table)
    assert obeyed(file.getvalue()) == []
    assert file.getvalue().count(r"\x1b]0;owned\x07") == 3


def test_an_error_shows_what_a_host_said_and_does_not_obey_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = StepError(EVIL, cause=EVIL, hint=EVIL, evidence=(EVIL,))
    output.error(failure, as_json=True)
    output.progress(f"  ! {EVIL}", host="h1")
    output.plain(EVIL)
    said = capsys.readouterr()
    assert obeyed(said.err) == []
    assert obeyed(said.out) == []
    document = said.out[: said.out.index("\n}\n") + 2]
    assert json.loads(document)["error"]["cause"] == EVIL.strip()

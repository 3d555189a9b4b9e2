r"""What may reach a terminal: text, and nothing that a terminal would obey.

Much of what is printed was written by others: a journal, the command line of a process, what a tool
says when it fails. A character that moves the cursor, clears the screen, answers for the operator
or turns text round is shown as what it is, such as `\x1b`.
"""

import re
from typing import Any

from rich.console import Console
from rich.text import Text

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def printable(text: str) -> str:
    """`text` with every character that is a command spelt out; line feeds and tabs stay."""
    return _OBEYED.sub(lambda match: _spelt(ord(match[0])), text)


def json_text(text: str) -> str:
    """JSON with the same characters as escapes of JSON, so that its values are what they were."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _spelt(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class SafeConsole(Console):
    """A console whose every string is `printable`, wherever it comes from."""

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console.render_str`, through which all strings go, those of tables as well."""
        return super().render_str(printable(text), **options)

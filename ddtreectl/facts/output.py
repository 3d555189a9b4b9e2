"""What the command of a fact said."""

import json
import math
import re
from dataclasses import dataclass

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")

TIMED_OUT = 137
"""Exit status of a section that ran past its deadline and was killed."""


@dataclass(frozen=True)
class Output:
    """Exit status and text of one section of the probe."""

    returncode: int
    stdout: str
    stderr: str = ""

    @property
    def timed_out(self) -> bool:
        """Whether the command was killed at its deadline."""
        return self.returncode == TIMED_OUT

    @property
    def lines(self) -> list[str]:
        """The lines of the text; only a line feed ends one, as for the shell that printed them."""
        return self.stdout.removesuffix("\n").split("\n") if self.stdout else []


def json_object(text: str) -> dict[str, object]:
    """The JSON object in `text`, or an empty one where there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the latter where brackets open thousands deep
        return {}
    return value if isinstance(value, dict) else {}


def json_objects(text: str) -> list[dict[str, object]]:
    """The JSON objects in `text`, one a line; lines that hold none are skipped."""
    return [found for line in text.split("\n") if (found := json_object(line))]


def unescaped(text: str) -> str:
    """What Python's `ascii` has made ASCII of; the text itself where it cannot have."""
    try:
        return text.encode("ascii").decode("unicode_escape")
    except (UnicodeError, DeprecationWarning):  # the latter of an unknown escape, where they count
        return text


def as_int(value: object) -> int | None:
    """`value` as a whole number in plain digits, or None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = str(value).strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def as_float(value: object) -> float | None:
    """`value` as a finite number, or None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None

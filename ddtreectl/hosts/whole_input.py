"""Commands that act only on the whole of their input.

A command cannot tell a connection that is cut from the end of its input: half a list of files to
remove ends in half a path.
"""

from collections.abc import Sequence

CUT_SHORT = 71
"""The exit status of a command that did nothing, as some of its input was missing."""

_SCRIPT = (
    "size=$1; shift; got=$(mktemp) || exit 1; trap 'rm -f -- \"$got\"' EXIT; "
    'cat >"$got"; [ "$(stat -c %s -- "$got")" = "$size" ] '
    f"|| {{ echo 'the input was cut short' >&2; exit {CUT_SHORT}; }}; "
    '"$@" <"$got"'
)


def whole(argv: Sequence[str], stdin: bytes) -> list[str]:
    """The command that runs `argv` once all of `stdin` has come, and does nothing otherwise."""
    return ["sh", "-c", _SCRIPT, "ddtreectl-whole", str(len(stdin)), *argv]

r"""One escaper for each place of a unit where a value goes.

The places have different rules (systemd.service(5) "Command lines", systemd.exec(5)
"Environment", systemd.syntax(7) "Quoting"), so a value is escaped for its place and for no other:

=================  =========  =========  =======================================
place              ``%``      ``$``      quoting
=================  =========  =========  =======================================
``ExecStart=``     doubled    doubled    double quotes, C escapes
``Environment=``   doubled    literal    double quotes round ``NAME=value``
``EnvironmentFile``  literal  literal    double quotes, only ``\ " ` $`` escaped
plain settings     doubled    literal    none: the value is one line of text
=================  =========  =========  =======================================
"""

import re
from collections.abc import Mapping, Sequence

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:=,+@%$-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EscapeError(ValueError):
    """A value that the place cannot hold."""


def exec_line(argv: Sequence[str]) -> str:
    """`argv` as the value of `ExecStart=`: systemd starts exactly these words.

    Raises:
        EscapeError: the program is no absolute path, or a word holds a NUL.

    The characters that have a meaning before a program (``@ - : + !``) cannot begin an absolute
    path, so they need no escape.
    """
    if not argv or not argv[0].startswith("/"):
        raise EscapeError(f"the program `{argv[0] if argv else ''}` is not an absolute path")
    return " ".join(_exec_word(word) for word in argv)


def environment(variables: Mapping[str, str]) -> list[str]:
    """Values of `Environment=`, one a variable.

    Raises:
        EscapeError: a name is no name of a variable, or a value holds a NUL.
    """
    return [
        '"' + _c_escaped(f"{_name(name)}={value}").replace("%", "%%") + '"'
        for name, value in variables.items()
    ]


def environment_file(variables: Mapping[str, str]) -> str:
    """The content of an `EnvironmentFile=`.

    Raises:
        EscapeError: a name is no name of a variable, or a value holds a control character other
            than tab and newline; the file has no escape for these.
    """
    lines = []
    for name, value in variables.items():
        _reject(value, allowed="\t\n")
        quoted = re.sub(r'([\\"`$])', r"\\\1", value)
        lines.append(f'{_name(name)}="{quoted}"\n')
    return "".join(lines)


def setting(value: str) -> str:
    """`value` as the plain value of a setting such as `Description=`.

    Raises:
        EscapeError: it holds a control character, or ends in the backslash that joins lines.
    """
    _reject(value)
    if value.endswith("\\"):
        raise EscapeError("a setting cannot end in a backslash, which joins it to the next line")
    return value.replace("%", "%%")


def _exec_word(word: str) -> str:
    doubled = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN_WORD.fullmatch(word):
        return doubled
    return '"' + _c_escaped(doubled) + '"'


def _c_escaped(value: str) -> str:
    _reject_nul(value)
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(
        named.get(character) or (f"\\x{ord(character):02x}" if _control(character) else character)
        for character in value
    )


def _control(character: str) -> bool:
    return ord(character) < 32 or ord(character) == 127


def _reject(value: str, allowed: str = "") -> None:
    for character in value:
        if _control(character) and character not in allowed:
            raise EscapeError(f"the value {value!r} holds the control character {character!r}")


def _reject_nul(value: str) -> None:
    if "\0" in value:
        raise EscapeError("a value cannot hold a NUL")


def _name(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise EscapeError(f"`{name}` is no name of an environment variable")
    return name

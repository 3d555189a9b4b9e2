"""Which model folders are there, and which unit files are installed."""

from collections.abc import Sequence
from shlex import quote

from ddtreectl.facts.output import Output

_MARKER = "==> ddtree unit "


def command(folders: Sequence[str]) -> str:
    """Print those of `folders` that hold a model's `config.json`."""
    words = " ".join(quote(folder) for folder in folders)
    return f'for d in {words}; do [ -f "$d/config.json" ] && printf \'%s\\n\' "$d"; done; true'


def parse(output: Output) -> frozenset[str]:
    """The folders that hold a model."""
    return frozenset(line for line in output.lines if line)


def units_command(paths: Sequence[str]) -> str:
    """Print the unit files that exist, each after a line that names it."""
    words = " ".join(quote(path) for path in paths)
    return (
        f'for f in {words}; do [ -f "$f" ] && {{ echo \'{_MARKER}\'"$f"; cat "$f"; }}; done; true'
    )


def parse_units(output: Output) -> dict[str, str]:
    """The text of each unit file by its name."""
    found: dict[str, str] = {}
    for block in f"\n{output.stdout}".split(f"\n{_MARKER}")[1:]:
        path, _, text = block.partition("\n")
        found[path.rpartition("/")[2]] = text if text.endswith("\n") else f"{text}\n"
    return found

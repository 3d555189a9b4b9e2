"""Which model folders are there, and which unit files are installed."""

from collections.abc import Sequence
from shlex import quote

from ddtreectl.facts.output import Output, as_int

MARKER = "==> ddtree unit "


def command(folders: Sequence[str]) -> str:
    """Print those of `folders` that hold a model's `config.json`, with the bytes of its weights."""
    words = " ".join(quote(folder) for folder in folders)
    weights = (
        """stat -L -c %s -- "$d"/*.safetensors 2>/dev/null | awk '{s += $1} END {print s+0}'"""
    )
    return (
        f'for d in {words}; do [ -f "$d/config.json" ] && '
        f"""printf '%s\\t%s\\n' "$d" "$({weights})"; done; true"""
    )


def parse(output: Output) -> frozenset[str]:
    """The folders that hold a model."""
    return frozenset(folder for line in output.lines if (folder := line.partition("\t")[0]))


def parse_weights(output: Output) -> dict[str, int]:
    """The bytes of the weights of each model."""
    found = {}
    for line in output.lines:
        folder, _, size = line.partition("\t")
        found[folder] = as_int(size) or 0
    return found


def keys_command(files: Sequence[str]) -> str:
    """Print permissions, owner, size and path of those of `files` that are there."""
    words = " ".join(quote(file) for file in files)
    return f'for f in {words}; do [ -f "$f" ] && stat -L -c \'%a %u %s %n\' "$f"; done; true'


def parse_keys(output: Output) -> dict[str, bool]:
    """Whether a file holds something for root's eyes only, by its path."""
    found = {}
    for line in output.lines:
        columns = line.split(" ", 3)
        if len(columns) == 4:
            mode, owner, size, path = columns
            found[path] = mode.endswith("00") and owner == "0" and size != "0"
    return found


def units_command(paths: Sequence[str]) -> str:
    """Print the unit files that exist, each after a line that names it."""
    words = " ".join(quote(path) for path in paths)
    return f'for f in {words}; do [ -f "$f" ] && {{ echo \'{MARKER}\'"$f"; cat "$f"; }}; done; true'


def parse_units(output: Output) -> dict[str, str]:
    """The text of each unit file by its name."""
    found: dict[str, str] = {}
    for block in f"\n{output.stdout}".split(f"\n{MARKER}")[1:]:
        path, _, text = block.partition("\n")
        found[path.rpartition("/")[2]] = text if text.endswith("\n") else f"{text}\n"
    return found

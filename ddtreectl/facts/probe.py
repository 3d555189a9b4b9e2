"""One probe for a host: all facts in one script that prints one JSON document.

The script is POSIX shell. Its sections run side by side, each bounded by its own deadline and with
its output in a file, so that a tool stuck in the kernel (`nvidia-smi` on a lost GPU) holds nothing
up: that it hangs is what the section reports. The caller bounds the whole script as well.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from ddtreectl.facts.output import Output

_PROLOGUE = r"""
d=$(mktemp -d) || exit 1
trap 'rm -rf "$d"' EXIT
section() {
  ( timeout -s KILL "$2" sh -c "$3" >"$d/$1.out" 2>"$d/$1.err" </dev/null
    echo $? >"$d/$1.rc" ) 2>/dev/null &
}
"""

_EPILOGUE = r"""
wait
separator='{'
for rc in "$d"/*.rc; do
  name=${rc##*/}; name=${name%.rc}
  printf '%s"%s":{"rc":%s,"out":"%s","err":"%s"}' "$separator" "$name" "$(cat "$rc")" \
    "$(base64 -w0 <"$d/$name.out")" "$(head -c 4000 "$d/$name.err" | base64 -w0)"
  separator=,
done
printf '}\n'
"""


@dataclass(frozen=True)
class Section:
    """One command of the probe.

    Attributes:
        command: shell text.
        deadline: seconds until it is killed.
    """

    command: str
    deadline: float = 5.0


def script(sections: Mapping[str, Section]) -> str:
    """The shell script that runs `sections` and prints what each said."""
    calls = [
        f"section {name} {section.deadline:g} {quote(section.command)}"
        for name, section in sections.items()
    ]
    return "\n".join([_PROLOGUE.strip(), *calls, _EPILOGUE.strip(), ""])


def deadline(sections: Mapping[str, Section]) -> float:
    """Seconds after which the whole script must have ended."""
    return max(section.deadline for section in sections.values()) + 10.0


def parse(document: str) -> dict[str, Output]:
    """The output of each section; sections that said nothing readable are absent."""
    try:
        raw = json.loads(document)
        return {
            name: Output(entry["rc"], _text(entry["out"]), _text(entry["err"]))
            for name, entry in raw.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return {}


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode(errors="replace")

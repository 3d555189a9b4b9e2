"""PCI addresses, which each source writes in its own way."""

import re

_ADDRESS = re.compile(
    r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE
)


def normalised(text: str) -> str | None:
    """`text` as domain:bus:device in lower case, or None where it is no address.

    The kernel log has `0000:3b:00`, /proc `0000:3b:00.0` and nvidia-smi `00000000:3B:00.0`.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device = (part or "0" for part in match.groups())
    return f"{int(domain, 16):04x}:{bus}:{device}".lower()

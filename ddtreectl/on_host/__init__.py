"""Programs that run on a host: each is the text of some of these modules, given to an interpreter.

Most of what a probe costs there is the start of the interpreter, so these modules import only what
is built into CPython: `json`, `pathlib` or `socket` would each take as long as everything else, and
so would `from __future__ import annotations` for an interpreter that is older than 3.10.
"""

from functools import cache
from pathlib import Path


@cache
def program(*modules: str) -> str:
    """The text of `modules`, in this order, as one module: what they import of each other is there.

    Args:
        modules: names of modules of this package.
    """
    lines = [
        line
        for name in modules
        for line in Path(__file__).with_name(f"{name}.py").read_text().splitlines()
        if not line.startswith("from ddtreectl.on_host.")
    ]
    return "\n".join([*lines, ""])

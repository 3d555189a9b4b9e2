"""A JSON file of a checkpoint, read with one message for whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddtree_engine.errors import CheckpointError
from ddtree_engine.readable import check_readable


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that `path` holds.

    Raises:
        CheckpointError: the file can't be read, is no JSON, or holds something else.
    """
    check_readable(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"`{path}` can't be read") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"`{path}` holds {type(data).__name__}, not a JSON object")
    return data

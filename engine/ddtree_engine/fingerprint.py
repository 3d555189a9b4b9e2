"""What tells one checkpoint from another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ddtree_engine.weights import weight_files

TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""Files beside the weights that decide what a service answers."""

PIECE = 1 << 20
PIECES = 64


def fingerprint(folder: Path) -> str:
    """Return `sha256:…` of a checkpoint, without reading all of a large one.

    Hashed are name, size and content of the configuration, the tokenizer and the weights. Of a file
    over 64 MiB it is 64 MiB: the first one (which holds the names and shapes of the tensors) and 63
    more, evenly spread to its end. A training changes every tensor, so that tells versions apart;
    it does not find a single weight that was changed on purpose.

    Raises:
        CheckpointError: as `weight_files`.
    """
    digest = hashlib.sha256()
    texts = [folder / name for name in TEXT_FILES if (folder / name).is_file()]
    for file in [*texts, *sorted(weight_files(folder))]:
        size = file.stat().st_size
        digest.update(f"{file.relative_to(folder)} {size}\n".encode())
        starts: Sequence[int] = range(0, size, PIECE)
        if len(starts) > PIECES:
            starts = [index * (size - PIECE) // (PIECES - 1) for index in range(PIECES)]
        with file.open("rb") as stream:
            for start in starts:
                stream.seek(start)
                digest.update(stream.read(PIECE))
    return f"sha256:{digest.hexdigest()}"

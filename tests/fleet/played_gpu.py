"""The `ddtree-engine` of hosts whose GPUs are played: it computes on the CPU, and dies of its card.

Goes into the engine's wheel as its program. The card is the one that the unit names; its state is
in the file that `nvidia-smi` of the lab reads. Once that says that it is lost, the next kernel
fails, as it would on a card that has fallen off the bus.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATE = Path("/usr/lib/fake-gpu/state.json")
ERROR = "CUDA error: unspecified launch failure"


def alive(uuid: str) -> bool:
    """Whether the driver would run a kernel on a card."""
    gpus = json.loads(STATE.read_text())["gpus"]
    return any(gpu["uuid"] == uuid and not gpu["fault"] for gpu in gpus)


def on_card(work: Callable[..., Any], uuid: str) -> Callable[..., Any]:
    """A part of the decoder's work that needs the card."""

    def checked(*arguments: object) -> object:
        if not alive(uuid):
            raise RuntimeError(ERROR)
        return work(*arguments)

    return checked


def main() -> int:
    """Run the engine with the arguments of this program."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # all hosts share the cores of one machine
    from ddtree_engine.cli.main import main as engine
    from ddtree_engine.decoder import Decoder

    words = sys.argv[1:]
    if "cuda" in words:
        uuid = os.environ["CUDA_VISIBLE_DEVICES"]
        for name in ("prefill", "round"):
            setattr(Decoder, name, on_card(getattr(Decoder, name), uuid))
    return engine(["cpu" if word == "cuda" else word for word in words])

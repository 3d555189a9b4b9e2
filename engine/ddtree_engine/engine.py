"""Everything that one process serves: target, drafter, tokenizer, and what they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ddtree_engine.config import TargetConfig, check_fit
from ddtree_engine.config_file import read_drafter_config, read_target_config
from ddtree_engine.decoder import Decoder, RecurrentState
from ddtree_engine.drafter import DrafterModel, load_drafter
from ddtree_engine.errors import EngineError, RequestError
from ddtree_engine.fingerprint import fingerprint
from ddtree_engine.target import TargetModel, load_target
from ddtree_engine.tokenizer import Tokenizer, check_vocabulary

BUNDLED = "bundled"
"""Name that stands for the demo model inside the package."""

DEMO = Path(__file__).parent / "demo"

MAX_THREADS = 1024
"""Past the cores of any one machine; PyTorch ends the process that can't start its threads."""

SMALL_HIDDEN_SIZE = 1024
"""Below this hidden size a model's matrices fit a core's cache, and one thread runs it best."""


@dataclass(frozen=True)
class Engine:
    """Loaded models and their identity.

    Attributes:
        model_fingerprint, drafter_fingerprint: `sha256:…`, see `fingerprint`.
        dtype: "float32" or "bfloat16".
        backend: what runs the kernels, for instance "torch-cpu".
    """

    target: TargetModel
    drafter: DrafterModel | None
    tokenizer: Tokenizer
    model_path: Path
    drafter_path: Path | None
    model_fingerprint: str
    drafter_fingerprint: str | None
    device: torch.device
    dtype: str
    backend: str

    @property
    def max_context(self) -> int:
        """Positions that the target was made for."""
        return self.target.config.max_position_embeddings

    def decoder(
        self,
        *,
        rows: int = 1,
        max_length: int,
        recurrent_state: RecurrentState = "exact",
        device_rounds: bool = False,
    ) -> Decoder:
        """Return a decoder with its own caches; see there for the arguments.

        Raises:
            RequestError: `max_length` is more than the model was made for.
        """
        if max_length > self.max_context:
            raise RequestError(
                f"{max_length} tokens are more than the {self.max_context} positions of the model",
                hint="shorten the prompt or generate fewer tokens",
            )
        return Decoder(
            self.target,
            self.drafter,
            rows=rows,
            max_length=max_length,
            recurrent_state=recurrent_state,
            device_rounds=device_rounds,
        )


def model_folder(name: str | Path, part: str) -> Path:
    """Return the folder that `--model` or `--drafter` names; `part` is "target" or "drafter"."""
    return DEMO / part if str(name) == BUNDLED else Path(name)


def choose_device(name: str) -> torch.device:
    """Return the device that `--device` names; "auto" is the first GPU, or else the CPU.

    Raises:
        EngineError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EngineError(f"`{name}` is not a device", hint="use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise EngineError(f"device `{name}` is not supported", hint="use cpu, cuda or cuda:N")
    if device.type == "cuda":
        index = device.index or 0
        if index >= torch.cuda.device_count():
            raise EngineError(
                f"there is no GPU {index}: PyTorch {torch.__version__} sees "
                f"{torch.cuda.device_count()}",
                hint="check nvidia-smi, CUDA_VISIBLE_DEVICES and the CUDA build of PyTorch",
            )
        device = torch.device("cuda", index)
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype that `--dtype` names; "auto" is float32 on a CPU and bfloat16 on a GPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def choose_device_rounds(name: str, device: torch.device) -> bool:
    """Return whether rounds run without the host, by what `--rounds` names.

    "auto" leaves them to a GPU, where each launch by the host costs more than a small kernel.
    """
    return device.type == "cuda" if name == "auto" else name == "device"


def set_threads(threads: int | None, target: TargetConfig) -> None:
    """Set how many threads share one operation on the CPU; None chooses by the size of the model.

    The products of a small model take microseconds, and every one of them would wait for the
    slowest thread: on a machine that does anything else, two threads can be a hundred times slower
    than one.

    Raises:
        EngineError: `threads` below 1, or more than a process can start.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise EngineError(f"--threads must be from 1 to {MAX_THREADS}, got {threads}")
    if threads is None and target.hidden_size >= SMALL_HIDDEN_SIZE:
        return
    torch.set_num_threads(1 if threads is None else threads)


def load_engine(
    model: str | Path = BUNDLED,
    drafter: str | Path | None = BUNDLED,
    *,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
) -> Engine:
    """Load a target, its drafter and its tokenizer, after checking that they belong together.

    Args:
        model: folder of the target, or "bundled".
        drafter: folder of the drafter, "bundled", or None.
        device: as in `choose_device`.
        dtype: as in `choose_dtype`.
        threads: as in `set_threads`; of the whole process.

    Raises:
        CheckpointError: a folder is missing, damaged, or does not fit.
        EngineError: the device does not exist.
    """
    place = choose_device(device)
    kind = choose_dtype(dtype, place)
    model_path = model_folder(model, "target")
    drafter_path = None if drafter is None else model_folder(drafter, "drafter")
    # What is cheap to refuse is refused before any weight is read.
    target_config = read_target_config(model_path)
    if drafter_path is not None:
        check_fit(read_drafter_config(drafter_path), target_config)
    if place.type == "cpu":
        set_threads(threads, target_config)
    tokenizer = Tokenizer.load(model_path)
    check_vocabulary(tokenizer, model_path, target_config.vocab_size)
    return Engine(
        target=load_target(model_path, device=place, dtype=kind),
        drafter=(
            None if drafter_path is None else load_drafter(drafter_path, device=place, dtype=kind)
        ),
        tokenizer=tokenizer,
        model_path=model_path,
        drafter_path=drafter_path,
        model_fingerprint=fingerprint(model_path),
        drafter_fingerprint=None if drafter_path is None else fingerprint(drafter_path),
        device=place,
        dtype=str(kind).removeprefix("torch."),
        backend=f"torch-{place.type}",
    )

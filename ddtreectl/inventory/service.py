"""A service: one mode of speculative decoding, on one backend, in one slot."""

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

BUNDLED = "bundled"
"""The name of the demo model and drafter that the engine's wheel carries."""

DRAFTER_FITS_MODEL = "a drafter fits one model: name both `model` and `drafter`, or neither"


class Mode(StrEnum):
    """How tokens are drafted and verified. Exactly one runs in a slot at a time."""

    LINEAR = "linear"
    SHADOW = "shadow"
    TREE = "tree"


def _model_reference(value: str) -> str:
    if value != BUNDLED and not value.startswith("/"):
        raise ValueError(f"`{value}` is neither `{BUNDLED}` nor an absolute path on the host")
    if any(ord(character) < 32 for character in value):
        raise ValueError("a path holds no control characters")
    return value


ModelReference = Annotated[str, AfterValidator(_model_reference)]
"""`bundled`, or the absolute path of a Hugging Face folder on the host."""


def _key_file(value: str) -> str:
    name = value.rpartition("/")[2]
    if not value.startswith("/") or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(f"`{value}` is no absolute path of a file on the host")
    if not re.fullmatch(r"[!-9;-~]+", value):
        raise ValueError(f"`{value}` holds a blank, a colon or a character that is not ASCII")
    return value


KeyFile = Annotated[str, AfterValidator(_key_file)]
"""A file on the host, which root alone can read."""


class Strict(BaseModel):
    """Base of all models: unknown keys and lenient conversions are errors, values never change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


SECRET_ARGUMENTS = frozenset({"--api-key", "--admin-api-key", "--ssl-keyfile-password"})
"""Arguments of SGLang whose value is a secret."""

OWN_ARGUMENTS = frozenset(
    {
        *("--host", "--port", "--nccl-port", "--model-path", "--model"),
        *("--tp-size", "--tensor-parallel-size", "--tp"),
        *("--speculative-algorithm", "--speculative-draft-model-path"),
    }
)
"""Arguments of SGLang that say which service of which slot it is: checks and swaps go by them."""


def _argument(value: str) -> str:
    if not value.isprintable():
        raise ValueError(f"{value!r} holds a character that cannot be printed")
    name = value.partition("=")[0].replace("_", "-")
    if name in SECRET_ARGUMENTS:
        raise ValueError(f"what `{name}` is given can be read by every user of the host")
    if name in OWN_ARGUMENTS:
        raise ValueError(f"`{name}` follows from the slot, its service and the mode")
    return value


class SglangSettings(Strict):
    """What only services on backend `sglang` have.

    Attributes:
        attention_backend: `auto` is `triton` on GPUs of compute capability 12.0 and SGLang's own
            choice on others.
        grammar_backend: `none` for a server without structured output, which needs no xgrammar.
        block_size: tokens of a block of the drafter; by default what the drafter's configuration
            says.
        context_length: the longest context, by default the model's.
        mem_fraction_static: share of the GPU's memory for weights and caches.
        nccl_port: where the processes of the slot meet; by default the slot's port + 1000. No two
            slots of a host share it.
        extra_args: more words for the command line, as they are; a patched SGLang has its own. None
            that is a secret, and none that says which service it is.
    """

    attention_backend: Literal["auto", "triton", "flashinfer", "fa3", "fa4", "trtllm_mha"] = "auto"
    grammar_backend: Literal["auto", "none", "xgrammar", "outlines", "llguidance"] = "auto"
    block_size: Annotated[int, Field(ge=2, le=256)] | None = None
    context_length: Annotated[int, Field(ge=1)] | None = None
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = None
    nccl_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    extra_args: Annotated[
        tuple[Annotated[str, AfterValidator(_argument)], ...], Field(strict=False)
    ] = ()


MAX_BUDGET = 1024


def _budget(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_BUDGET:
        raise ValueError(f"must be `auto`, or a number from 1 to {MAX_BUDGET}")
    return value


Budget = Annotated[
    int | Literal["auto"],
    PlainValidator(
        _budget,
        json_schema_input_type=Annotated[int, Field(ge=1, le=MAX_BUDGET)] | Literal["auto"],
    ),
]
"""Nodes of a tree besides the root; `auto` lets the engine choose."""


class ServiceSettings(Strict):
    """What a service runs with; every field can be set for all slots and for one slot.

    Attributes:
        backend: the server program: `engine` (ddtree-engine) or `sglang`.
        budget: nodes of the tree besides the root, so `budget` + 1 tokens are verified a round;
            `auto` lets the engine choose.
        topk: candidates for each depth of the tree.
        model: the target model.
        drafter: the drafter that proposes tokens for the target.
        dtype: arithmetic of the model; `auto` leaves it to the engine.
        max_running: requests decoded at the same time.
        max_queue: requests that may wait before the server answers 429.
        start_timeout: seconds from start to ready, loading and warm-up included.
        stop_timeout: seconds that running requests get to finish.
        api_key: a file on the host with the keys that clients may use, one a line. The service gets
            it as a credential, so that no key is in an argument, a variable or a unit.
        sglang: what only that backend has.
    """

    backend: Literal["engine", "sglang"] = "engine"
    budget: Budget = 16
    topk: Annotated[int, Field(ge=1, le=64)] = 8
    model: ModelReference = BUNDLED
    drafter: ModelReference = BUNDLED
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_running: Annotated[int, Field(ge=1, le=1024)] = 4
    max_queue: Annotated[int, Field(ge=0, le=65536)] = 64
    start_timeout: Annotated[int, Field(ge=1, le=7200)] = 180
    stop_timeout: Annotated[int, Field(ge=1, le=600)] = 30
    api_key: KeyFile | None = None
    sglang: SglangSettings = SglangSettings()


class ServiceSpec(ServiceSettings):
    """A service as it is deployed: settings, mode and the place it serves.

    Attributes:
        mode: how it decodes.
        device: `cpu`, or the GPUs as `cuda:N` or `cuda:N,M`.
        address: the address it listens on.
        port: the port it listens on.
    """

    mode: Mode
    device: str
    address: str
    port: int

    @model_validator(mode="after")
    def _both_or_neither_bundled(self) -> Self:
        if (self.model == BUNDLED) != (self.drafter == BUNDLED):
            raise ValueError(DRAFTER_FITS_MODEL)
        objection = sglang_objection(self, on_cpu=self.device == "cpu")
        if self.backend == "sglang" and objection:
            raise ValueError(objection)
        return self

    @property
    def gpu_count(self) -> int:
        """How many GPUs it runs on: the size of its tensor-parallel group; 0 on the CPU."""
        return len(self.device.partition(":")[2].split(",")) if self.device != "cpu" else 0


def nccl_port(service: ServiceSettings, port: int) -> int:
    """Where the processes of a service on `port` meet; the same port at each start."""
    return service.sglang.nccl_port or port + 1000


def sglang_objection(settings: ServiceSettings, *, on_cpu: bool) -> str:
    """Why SGLang has no place for a service; empty where it has one."""
    if on_cpu:
        return "backend `sglang` runs on GPUs"
    if BUNDLED in {settings.model, settings.drafter}:
        return "backend `sglang` serves a `model` and a `drafter` of the host"
    if settings.budget == "auto":
        return "backend `sglang` takes a `budget` in numbers"
    if settings.api_key:
        return (
            "backend `sglang` takes keys in its arguments alone, where every user reads them: "
            "leave `api_key` out, and have a proxy in front check keys"
        )
    return ""

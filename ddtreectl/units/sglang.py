"""The command line of SGLang, its environment, and the combinations that it does not survive.

Arguments and variables as in the published packages of 0.5.16 and 0.5.23, which have all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddtreectl.facts.driver import version_numbers
from ddtreectl.inventory.service import Mode, ServiceSpec, nccl_port

DRAIN_MARGIN = 15
"""Seconds beyond the drain: an idle server of 0.5.16 takes 7 s to end; a crashed one waits 5 s."""

IMPORTS = 120
"""Seconds of a start without the weights: two processes import for 25 s each, then compile."""

SLOWEST_LOAD = 200 << 20
"""Bytes of weights a second that a start is given at least."""

BLACKWELL_SERVER = (12, 0)
GDN_BACKENDS = ("triton", "trtllm_mha", "flashinfer")
"""Attention backends that SGLang accepts on compute capability 12 for hybrid GDN models."""

ALGORITHMS = {Mode.LINEAR: "DFLASH", Mode.SHADOW: "DDTREE", Mode.TREE: "DDTREE"}
"""DDTREE is no algorithm of SGLang itself: a plugin has to register it."""


def argv(python: str, service: ServiceSpec, capabilities: Sequence[tuple[int, int]]) -> list[str]:
    """The words that start `service`.

    Args:
        python: the interpreter of the environment.
        service: what is served.
        capabilities: of the GPUs of its slot.
    """
    options = service.sglang
    if service.budget == "auto":
        raise ValueError("`sglang_objection` lets no service with this budget through")
    nodes = options.block_size if service.mode is Mode.LINEAR else service.budget + 1
    attention = attention_backend(service, capabilities)
    return [
        *(python, "-m", "sglang.launch_server"),
        *("--model-path", service.model),
        *("--host", service.address, "--port", str(service.port)),
        *("--nccl-port", str(nccl_port(service, service.port))),
        *("--tp-size", str(service.gpu_count)),
        *("--dtype", service.dtype),
        *("--speculative-algorithm", ALGORITHMS[service.mode]),
        *("--speculative-draft-model-path", service.drafter),
        *_option("--speculative-num-draft-tokens", nodes),
        *_option("--speculative-eagle-topk", None if service.mode is Mode.LINEAR else service.topk),
        *_option("--attention-backend", attention),
        *_option("--speculative-draft-attention-backend", attention),
        *_option(
            "--grammar-backend",
            None if options.grammar_backend == "auto" else options.grammar_backend,
        ),
        *("--max-running-requests", str(service.max_running)),
        # A request is queued before it is looked at: with 0, SGLang would refuse every one.
        *("--max-queued-requests", str(max(service.max_queue, 1))),
        *_option("--context-length", options.context_length),
        *_option("--mem-fraction-static", options.mem_fraction_static),
        "--enable-metrics",
        *options.extra_args,
    ]


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def attention_backend(service: ServiceSpec, capabilities: Sequence[tuple[int, int]]) -> str | None:
    """The attention backend to name, or None for SGLang's own choice.

    On 12.0 that is Triton's: FlashInfer's compiler and FlashAttention 3 have refused these GPUs.
    """
    if service.sglang.attention_backend != "auto":
        return service.sglang.attention_backend
    return "triton" if any(pair >= BLACKWELL_SERVER for pair in capabilities) else None


def environment(gpus: Sequence[str]) -> dict[str, str]:
    """Variables of a service that has the GPUs with these UUIDs.

    `/health` generates a token by default, and a probe that gives up leaves its request behind; so
    it does not here, and ddtreectl generates by itself where that is to be seen.
    """
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "PYTHONUNBUFFERED": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    }


def start_timeout(service: ServiceSpec, weights: int) -> int:
    """Seconds that a start may take: what was asked, or what so many bytes of weights need."""
    return max(service.start_timeout, IMPORTS + weights // SLOWEST_LOAD)


@dataclass(frozen=True)
class Trap:
    """A combination that passes every check of SGLang and does not serve.

    Attributes:
        flag: the argument of it.
        modes: the modes in which it does that.
        first: the first version that is known to do it.
        last: the last one, or nothing where no later one is known to be right.
        why: what happens.
    """

    flag: str
    modes: tuple[Mode, ...]
    first: str
    last: str
    why: str


TRAPS = (
    Trap(
        "--enable-gdn-replayssm-spec",
        (Mode.LINEAR,),
        *("0.5.16", "0.5.16"),
        "the server starts and captures its graphs, and dies at the first verify "
        "(`'NoneType' object has no attribute 'device'` in mamba_state_scatter_triton)",
    ),
    Trap(
        "--enable-linear-replayssm-spec",
        (Mode.LINEAR,),
        *("0.5.23", ""),
        "it is for KDA models alone, and a Gated DeltaNet model ends the start",
    ),
    Trap(
        "--pp-size", (Mode.LINEAR, Mode.SHADOW, Mode.TREE), "0.5.16", "", "DFLASH has no pipelines"
    ),
)


def traps(
    service: ServiceSpec,
    version: str,
    words: Sequence[str],
    capabilities: Sequence[tuple[int, int]],
) -> list[str]:
    """Why this command line must not be started on this version, each by name."""
    numbers = version_numbers(version)
    given = {word.partition("=")[0] for word in words}
    found = [
        f"mode `{service.mode}` with `{trap.flag}` on SGLang {version}: {trap.why}"
        for trap in TRAPS
        if trap.flag in given
        and service.mode in trap.modes
        and version_numbers(trap.first) <= numbers
        and (not trap.last or numbers <= version_numbers(trap.last))
    ]
    asked = service.sglang.attention_backend
    if asked not in {"auto", *GDN_BACKENDS} and any(c >= BLACKWELL_SERVER for c in capabilities):
        allowed = ", ".join(GDN_BACKENDS)
        found.append(f"attention backend `{asked}` on compute capability 12: only {allowed}")
    return found

"""The command line of `ddtree-engine serve`, and its environment."""

from collections.abc import Sequence

from ddtreectl.inventory.service import ServiceSpec

DRAIN_MARGIN = 5
"""Seconds between the end of the engine's drain and the end of systemd's patience."""


def argv(executable: str, service: ServiceSpec) -> list[str]:
    """The words that start `service`; `executable` is the absolute path of `ddtree-engine`."""
    return [
        executable,
        "serve",
        *("--model", service.model),
        *("--drafter", service.drafter),
        *("--mode", service.mode.value),
        *("--budget", str(service.budget)),
        *("--topk", str(service.topk)),
        *("--host", service.address),
        *("--port", str(service.port)),
        *("--device", "cpu" if service.device == "cpu" else "cuda"),
        *("--dtype", service.dtype),
        *("--max-running", str(service.max_running)),
        *("--max-queue", str(service.max_queue)),
        *("--drain-timeout", str(service.stop_timeout)),
        *(("--api-key-file", service.api_key) if service.api_key else ()),
    ]


def environment(gpus: Sequence[str]) -> dict[str, str]:
    """Variables of a service that has the GPUs with these UUIDs, or none.

    A UUID names a card, whereas an index moves to another one when a GPU before it is lost.
    """
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "PYTHONUNBUFFERED": "1",
    }

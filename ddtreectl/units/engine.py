"""The command line of `ddtree-engine serve`, and its environment."""

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
    ]


def environment(service: ServiceSpec) -> dict[str, str]:
    """Variables of the service.

    A GPU is chosen by CUDA_VISIBLE_DEVICES in PCI order, the order that `nvidia-smi` counts in, so
    that the engine sees one device and it is the slot's.
    """
    visible = "" if service.device == "cpu" else service.device.removeprefix("cuda:")
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": visible,
        "PYTHONUNBUFFERED": "1",
    }

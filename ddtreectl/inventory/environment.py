"""What the environments of a host are built from, as far as the inventory has a say in it."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator

from ddtreectl.inventory.service import Strict
from ddtreectl.inventory.ssh import OwnPath

_VERSION = re.compile(r"\d+(\.\d+){1,2}((a|b|rc)\d+)?")


def _exact_version(value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise ValueError(f"`{value}` is no exact version, as in `2.11.0`, without `+cu128`")
    return value


ExactVersion = Annotated[str, AfterValidator(_exact_version)]
CudaName = Literal["auto", "cu126", "cu128", "cu130", "cpu"]


class EnvironmentSettings(Strict):
    """What environments are built from; every field can be set for all hosts and for one.

    Attributes:
        torch: the version of torch; by default the one that the backend is made for.
        cuda: the CUDA build of torch. `auto` goes by the driver and the GPUs.
        wheelhouse: a folder of wheels on the operator's machine, for hosts without a network;
            without it, the host's own pip configuration says where packages come from.
    """

    torch: ExactVersion | None = None
    cuda: CudaName = "auto"
    wheelhouse: OwnPath | None = None

    def changed_by(self, other: "EnvironmentSettings") -> "EnvironmentSettings":
        """These settings, with those that `other` names in their place."""
        changes = other.model_dump(include=other.model_fields_set)
        return EnvironmentSettings.model_validate({**self.model_dump(), **changes})

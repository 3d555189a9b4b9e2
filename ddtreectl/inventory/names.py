"""The words of an inventory that more than one of its models uses: names, addresses, paths."""

import re
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, Field

NAME = re.compile(r"[a-z][a-z0-9]{0,31}")
HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class PlacedError(ValueError):
    """A rule that spans several parts of a file is broken at a place that the rule knows.

    Args:
        message: what is wrong.
        location: keys and indices from the model that has the rule down to the place.
    """

    def __init__(self, message: str, *location: str | int) -> None:
        super().__init__(message)
        self.location = location


def _slot_name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            f"`{value}` is no name for a slot: lower-case letters and digits, as in `gpu1`"
        )
    return value


def _host_name(value: str) -> str:
    if not HOST_NAME.fullmatch(value):
        raise ValueError(
            f"`{value}` is no name for a host: lower-case letters, digits and inner hyphens"
        )
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or value.rstrip("/") == "":
        raise ValueError(f"`{value}` is not an absolute path below `/`")
    if " " in value or not value.isprintable():
        raise ValueError("the path holds a blank or a character that cannot be printed")
    if ".." in value.split("/"):
        raise ValueError(f"`{value}` climbs with `..`")
    return value.rstrip("/")


def _ip_address(value: str) -> str:
    try:
        return str(ip_address(value))
    except ValueError:
        raise ValueError(f"`{value}` is no IP address to listen on") from None


SlotName = Annotated[str, AfterValidator(_slot_name)]
HostName = Annotated[str, AfterValidator(_host_name)]
IpAddress = Annotated[str, AfterValidator(_ip_address)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
Port = Annotated[int, Field(ge=1, le=65535)]
GpuIndex = Annotated[int, Field(ge=0, le=63)]

"""From the words of a command line to one host, one slot and one service."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from ddtreectl.errors import UsageError
from ddtreectl.inventory.layout import Layout
from ddtreectl.inventory.model import HostEntry, Inventory, Slot
from ddtreectl.inventory.service import Budget, Mode, ServiceSpec

MAX_GPUS = 64


@dataclass(frozen=True)
class Place:
    """A slot and the host that it is on, with their names."""

    host_name: str
    host: HostEntry
    slot_name: str
    slot: Slot

    @property
    def layout(self) -> Layout:
        """Where things lie on the host."""
        return Layout.of(self.host)

    @property
    def words(self) -> str:
        """How a command line names it: by its host, where that has no other slot."""
        return words(self.host_name, self.host, self.slot_name)


def words(host_name: str, host: HostEntry, slot_name: str) -> str:
    """How a command line names a slot of a host, whether the inventory still has it or not."""
    return host_name if list(host.slots) == [slot_name] else f"{host_name} --slot {slot_name}"


def find_host(inventory: Inventory, name: str) -> HostEntry:
    """The host called `name`, with the settings of its environment complete.

    Raises:
        UsageError: no such host.
    """
    if name not in inventory.hosts:
        raise UsageError(
            f"host `{name}` is not in the inventory",
            hint=f"it has: {', '.join(sorted(inventory.hosts))}; `--inventory PATH` names another",
        )
    host = inventory.hosts[name]
    environment = inventory.environment.changed_by(host.environment)
    return host.model_copy(update={"environment": environment})


def find_place(
    inventory: Inventory,
    host_name: str,
    *,
    slot: str | None = None,
    gpu: int | None = None,
    port: int | None = None,
) -> Place:
    """The one slot of a host that fits what is asked; without any wish, its only slot.

    Raises:
        UsageError: the host is unknown, or no slot or more than one fits.
    """
    host = find_host(inventory, host_name)
    for entry in host.protected:
        if (gpu is not None and gpu in entry.gpus) or (port is not None and port == entry.port):
            what = f"GPU {gpu}" if gpu is not None and gpu in entry.gpus else f"port {port}"
            raise UsageError(
                f"{what} of `{host_name}` belongs to the protected `{entry.name}`: {entry.reason}"
            )
    fitting = [
        (name, candidate)
        for name, candidate in host.slots.items()
        if (slot is None or name == slot)
        and (gpu is None or gpu in candidate.gpus)
        and (port is None or port == candidate.port)
    ]
    if len(fitting) == 1:
        return Place(host_name, host, *fitting[0])
    listed = ", ".join(f"{name} (port {candidate.port})" for name, candidate in host.slots.items())
    if fitting:
        raise UsageError(
            f"`{host_name}` has several slots: {listed}",
            hint="choose one with `--slot`, `--gpu` or `--port`",
        )
    raise UsageError(
        f"no slot of `{host_name}` is what is asked for", hint=f"the inventory has: {listed}"
    )


def service_for(
    inventory: Inventory,
    place: Place,
    mode: Mode,
    *,
    budget: Budget | None = None,
    topk: int | None = None,
    model: str | None = None,
    drafter: str | None = None,
) -> ServiceSpec:
    """The service that is asked for: inventory first, then what the command line changes.

    Raises:
        UsageError: a value is out of range.
    """
    asked = {"budget": budget, "topk": topk, "model": model, "drafter": drafter}
    settings = inventory.settings(place.slot).model_dump()
    settings.update({key: value for key, value in asked.items() if value is not None})
    gpus = ",".join(str(index) for index in place.slot.gpus)
    device = "cpu" if place.slot.device == "cpu" else f"cuda:{gpus}"
    where = {"device": device, "address": place.slot.address, "port": place.slot.port}
    return checked({**settings, "mode": mode, **where})


def checked(values: Mapping[str, object]) -> ServiceSpec:
    """The service with these values.

    Raises:
        UsageError: one of them is out of range.
    """
    try:
        return ServiceSpec.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        text = str(first["msg"]).removeprefix("Value error, ").replace("Input should", "must")
        raise UsageError(f"`--{where}` {text}" if where else text) from None


@dataclass(frozen=True)
class Target:
    """A host, or one GPU of it.

    Attributes:
        host_name: the host.
        host: its entry in the inventory.
        gpu: index of the GPU; None for the whole host.
    """

    host_name: str
    host: HostEntry
    gpu: int | None

    def __str__(self) -> str:
        """The form that the command line has."""
        return self.host_name if self.gpu is None else f"{self.host_name}:{self.gpu}"

    @property
    def places(self) -> list[Place]:
        """The slots that it affects."""
        return [
            Place(self.host_name, self.host, name, slot)
            for name, slot in self.host.slots.items()
            if self.gpu is None or self.gpu in slot.gpus
        ]


def find_target(inventory: Inventory, text: str) -> Target:
    """What `HOST` or `HOST:GPU` means.

    Raises:
        UsageError: no such host, or no index of a GPU.
    """
    name, colon, index = text.partition(":")
    host = find_host(inventory, name)
    if not colon:
        return Target(name, host, None)
    if not (index.isascii() and index.isdecimal() and len(index) < 4 and int(index) < MAX_GPUS):
        raise UsageError(
            f"`{text}` is neither a host nor one of its GPUs",
            hint=f"a GPU is named by its index, as in `{name}:1`",
        )
    return Target(name, host, int(index))


def find_slots(inventory: Inventory, text: str) -> Target:
    """What `HOST` or `HOST:GPU` means, where it has to have a slot.

    Raises:
        UsageError: no such host, or no slot of it has the GPU.
    """
    target = find_target(inventory, text)
    if target.gpu is not None:
        find_place(inventory, target.host_name, gpu=target.gpu)
    return target

"""Strict models of an inventory file: hosts, their slots, and what must be left alone."""

import sys
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ddtreectl.inventory.environment import EnvironmentSettings
from ddtreectl.inventory.names import (
    AbsolutePath,
    GpuIndex,
    HostName,
    IpAddress,
    PlacedError,
    Port,
    SlotName,
)
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.inventory.service import (
    BUNDLED,
    DRAFTER_FITS_MODEL,
    ServiceSettings,
    Strict,
    nccl_port,
    sglang_objection,
)
from ddtreectl.inventory.ssh import SshName, SshSettings
from ddtreectl.inventory.workers import workers


class Slot(Strict):
    """One place of a host where at most one service runs.

    Attributes:
        device: `cpu` for a slot without GPU.
        gpus: the GPUs of the slot; several are one tensor-parallel group.
        address: the address to listen on.
        port: the port to listen on; it stays the same in every swap.
        protected: its service is drained, or moved to another host, only when its GPU is named.
        behind_router: whether the router of the fleet sends requests to it, where there is one.
        service: settings that differ from the inventory's `defaults`.
    """

    device: Literal["cpu", "gpu"] = "gpu"
    gpus: Annotated[list[GpuIndex], Field(default_factory=list, max_length=16)]
    address: IpAddress = "127.0.0.1"
    port: Port
    protected: bool = False
    behind_router: bool = True
    service: ServiceSettings = ServiceSettings()

    @model_validator(mode="after")
    def _gpus_fit_the_device(self) -> Self:
        if self.device == "gpu" and not self.gpus:
            raise ValueError("a slot names its `gpus`, or says `device: cpu`")
        if self.device == "cpu" and self.gpus:
            raise ValueError("a slot with `device: cpu` has no `gpus`")
        if len(set(self.gpus)) != len(self.gpus):
            raise ValueError("`gpus` names a GPU twice")
        return self


class Protected(Strict):
    """Something that runs on the host and that no command may touch.

    Attributes:
        name: what it is, for messages.
        gpus: the GPUs it uses.
        port: the port it listens on.
        reason: why it is left alone.
    """

    name: str
    gpus: Annotated[list[GpuIndex], Field(default_factory=list)]
    port: Port | None = None
    reason: str


class HostEntry(Strict):
    """A host and its slots.

    Attributes:
        connection: `local` for this machine, `ssh` for another one.
        address: where SSH connects to: an address, a name, or an alias of ssh_config.
        user: who SSH logs in as, by default as `ssh` would. Anyone but root uses `sudo -n`.
        ssh: settings of the connection that differ from the inventory's.
        root: where generations, environments, lock and audit log live on the host.
        environments: where environments are built, `root`/environments by default.
        environment: what they are built from, where that differs from the inventory's.
        unit_dir: where unit files are installed.
        python: the interpreter that environments are made from (3.11 or newer);
            by default `python3`, and on a local host the one that runs ddtreectl.
        revert_after: seconds after which a host that hears nothing more of an operator in the
            middle of a swap returns to the last good generation by itself.
        gpus: how many GPUs it has; by default as many as its slots and what is protected name.
            A host that shows fewer has lost one.
        slots: by name.
        protected: what must be left alone.
    """

    connection: Literal["local", "ssh"] = "ssh"
    address: SshName | None = None
    user: SshName | None = None
    ssh: SshSettings = SshSettings()
    root: AbsolutePath = "/var/lib/ddtree"
    environments: AbsolutePath | None = None
    environment: EnvironmentSettings = EnvironmentSettings()
    unit_dir: AbsolutePath = "/etc/systemd/system"
    python: AbsolutePath | None = None
    revert_after: Annotated[int, Field(ge=5, le=3600)] = 90
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    slots: Annotated[dict[SlotName, Slot], Field(min_length=1)]
    protected: Annotated[list[Protected], Field(default_factory=list)]

    @property
    def interpreter(self) -> str:
        """The interpreter of the host that ddtreectl uses and makes environments from."""
        if self.python:
            return self.python
        return sys.executable if self.connection == "local" else "python3"

    @model_validator(mode="after")
    def _address_is_known(self) -> Self:
        if self.connection == "ssh" and not self.address:
            raise ValueError("a host with `connection: ssh` has an `address`")
        return self

    @model_validator(mode="after")
    def _nothing_is_claimed_twice(self) -> Self:
        ports: dict[int, str] = {}
        gpus: dict[int, str] = {}
        for owner, slot_port, slot_gpus in self._claims():
            if slot_port is not None and slot_port in ports:
                raise ValueError(f"port {slot_port} belongs to {ports[slot_port]} and to {owner}")
            if slot_port is not None:
                ports[slot_port] = owner
            for gpu in slot_gpus:
                if gpu in gpus:
                    raise ValueError(f"GPU {gpu} belongs to {gpus[gpu]} and to {owner}")
                gpus[gpu] = owner
        return self

    def _claims(self) -> list[tuple[str, int | None, list[int]]]:
        slots = [(f"slot `{name}`", slot.port, slot.gpus) for name, slot in self.slots.items()]
        kept = [(f"protected `{entry.name}`", entry.port, entry.gpus) for entry in self.protected]
        return [*slots, *kept]

    @property
    def ports(self) -> dict[int, str]:
        """The ports that are claimed, with who claims them."""
        return {port: owner for owner, port, _ in self._claims() if port is not None}

    @property
    def environments_dir(self) -> str:
        """Where environments are built."""
        return self.environments or f"{self.root}/environments"


class Inventory(Strict):
    """One inventory file.

    Attributes:
        hosts: by name.
        defaults: settings of every service, unless its slot says otherwise.
        ssh: settings of every connection, unless its host says otherwise.
        environment: what environments are built from, unless their host says otherwise.
        router: what clients of all services speak to, if there is one.
    """

    hosts: Annotated[dict[HostName, HostEntry], Field(min_length=1)]
    defaults: ServiceSettings = ServiceSettings()
    ssh: SshSettings = SshSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    router: RouterSettings | None = None

    @model_validator(mode="after")
    def _router_has_a_place(self) -> Self:
        router = self.router
        if router is None:
            return self
        if router.host not in self.hosts:
            raise PlacedError(f"`{router.host}` is not among `hosts`", "router", "host")
        if router.port == router.metrics_port:
            raise PlacedError("it is `port` already", "router", "metrics_port")
        taken = self.hosts[router.host].ports
        for key in ("port", "metrics_port"):
            port = getattr(router, key)
            if port in taken:
                message = f"port {port} of `{router.host}` belongs to {taken[port]} already"
                raise PlacedError(message, "router", key)
        workers(self)  # each is where the router can reach it
        return self

    @model_validator(mode="after")
    def _services_fit_their_slots(self) -> Self:
        for host_name, host in self.hosts.items():
            for slot_name, slot in host.slots.items():
                where = f"slot `{slot_name}` of `{host_name}`"
                settings = self.settings(slot)
                if len(slot.gpus) > 1 and settings.backend != "sglang":
                    raise ValueError(f"{where}: backend `{settings.backend}` runs on one GPU")
                objection = sglang_objection(settings, on_cpu=slot.device == "cpu")
                if settings.backend == "sglang" and objection:
                    raise ValueError(f"{where}: {objection}")
                if (settings.model == BUNDLED) != (settings.drafter == BUNDLED):
                    raise ValueError(f"{where}: {DRAFTER_FITS_MODEL}")
        return self

    @model_validator(mode="after")
    def _nccl_ports_are_their_own(self) -> Self:
        for host_name, host in self.hosts.items():
            ports = host.ports
            for slot_name, slot in host.slots.items():
                settings = self.settings(slot)
                if settings.backend != "sglang":
                    continue
                port = nccl_port(settings, slot.port)
                if port in ports:
                    raise ValueError(
                        f"slot `{slot_name}` of `{host_name}`: its NCCL port {port} belongs to "
                        f"{ports[port]}; name another one with `sglang: {{nccl_port: N}}`"
                    )
                ports[port] = f"NCCL of slot `{slot_name}`"
        return self

    def settings(self, slot: Slot) -> ServiceSettings:
        """What a service in `slot` runs with: the defaults, then what the slot changes."""
        own = slot.service.sglang
        changes = slot.service.model_dump(include=slot.service.model_fields_set)
        sglang = own.model_dump(include=own.model_fields_set)
        changes["sglang"] = {**self.defaults.sglang.model_dump(), **sglang}
        return ServiceSettings.model_validate({**self.defaults.model_dump(), **changes})

    def connection(self, host: HostEntry) -> SshSettings:
        """How SSH reaches `host`: the settings of all hosts, then what the host changes."""
        return self.ssh.changed_by(host.ssh)

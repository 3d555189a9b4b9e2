"""The router of a fleet: one address for clients, in front of the services of all hosts."""

from typing import Annotated, Literal

from pydantic import Field

from ddtreectl.inventory.environment import ExactVersion
from ddtreectl.inventory.names import HostName, IpAddress, Port
from ddtreectl.inventory.service import Strict
from ddtreectl.inventory.ssh import OwnPath

Policy = Literal["round_robin", "random", "cache_aware", "consistent_hashing", "prefix_hash"]


class RouterSettings(Strict):
    """The router, `smg` of PyPI, and where it runs.

    Attributes:
        host: a host of the inventory.
        address: the address that it listens on. Whoever reaches it may also change its workers.
        port: where clients find it.
        metrics_port: where its own Prometheus metrics are, on loopback alone.
        policy: how it chooses among the workers that serve the model of a request. Policies that
            ask workers for their load in SGLang's own way are not offered.
        version: of `smg`.
        wheelhouse: a folder of its wheels on the operator's machine, for a host without a network;
            without it, the host's own pip configuration says where packages come from.
        health: what workers are asked for to see whether they are fit; `/ready` says no while a
            service starts, and as soon as it stops.
        drain_timeout: seconds that the running requests of a worker get, once it is taken out,
            before its service is stopped all the same.
        request_timeout: seconds that a request may take.
    """

    host: HostName
    address: IpAddress
    port: Port
    metrics_port: Port = 29000
    policy: Policy = "round_robin"
    version: ExactVersion = "1.13.0"
    wheelhouse: OwnPath | None = None
    health: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./-]*$")] = "/ready"
    drain_timeout: Annotated[int, Field(ge=0, le=3600)] = 120
    request_timeout: Annotated[int, Field(ge=1, le=86400)] = 1800

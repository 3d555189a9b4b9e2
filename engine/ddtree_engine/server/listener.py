"""The listening socket, taken before anything slow is done."""

from __future__ import annotations

import errno
import socket

from ddtree_engine.errors import EngineError
from ddtree_engine.server.open_files import backlog

ADDRESSES = "`ip -brief address` names this machine's addresses; write IPv6 without brackets"


def listen(host: str, port: int) -> socket.socket:
    """Listen on `host` and `port`; port 0 takes a free one.

    Connections of a service that has just stopped do not block its port (SO_REUSEADDR); a process
    that still listens does.

    Raises:
        EngineError: the port is in use, not permitted, or the host has no such address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:  # the latter: no name could be spelt like that
        raise EngineError(f"`{host}` is not an address of this machine", hint=ADDRESSES) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog())
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise EngineError(
                f"port {port} on {host} is in use",
                hint=f"`ss -ltnp 'sport = :{port}'` names the process; stop it or change --port",
            ) from None
        denied = error.errno == errno.EACCES
        raise EngineError(
            f"can't listen on {host} port {port}",
            hint="ports below 1024 are for root; change --port" if denied else ADDRESSES,
        ) from error
    listener.setblocking(False)
    return listener

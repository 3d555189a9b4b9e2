"""A connection to a host, opened when it is needed and shared by all who need it."""

import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from secrets import SystemRandom

from paramiko import Channel, Transport
from paramiko.ssh_exception import (
    ChannelException,
    IncompatiblePeer,
    SSHException,
)

from ddtreectl.errors import DdtreectlError, UnreachableError
from ddtreectl.hosts import authentication, host_keys
from ddtreectl.hosts.destination import Destination
from ddtreectl.hosts.host_keys import HostKeyError
from ddtreectl.hosts.protocol import about

HANDSHAKE_TIMEOUT = 20.0
CHANNEL_TIMEOUT = 10.0
KEEPALIVE = 15
TRIES = 4
SILENT_TRIES = 2
"""How often a host is tried that says nothing: within one try TCP has already asked again."""

NO_NEW_TRY_AFTER = 15.0
BUSY = "it closed the connection at once: its sshd may be too busy (`MaxStartups`)"
FAST_CIPHER = "aes128-gcm@openssh.com"

# Paramiko logs what it also raises, and Python prints what nobody has asked a logger for.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _PassingError(Exception):
    """An attempt failed in a way that another attempt may not.

    Args:
        text: how.
        tries: how often that may happen before it is believed.
    """

    def __init__(self, text: str, tries: int = TRIES) -> None:
        super().__init__(text)
        self.tries = tries


class Link:
    """The connection to one destination.

    Args:
        destination: where it goes to.
        via: the connection that it goes through, or None.
        accept_new: whether the key of an unknown host is accepted and added to known_hosts.
    """

    def __init__(self, destination: Destination, via: "Link | None", *, accept_new: bool) -> None:
        self.destination = destination
        self.via = via
        self._accept_new = accept_new
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._failure: tuple[float, DdtreectlError] | None = None
        self._jitter = SystemRandom()

    def open_session(self) -> Channel:
        """A new channel for one command. Connects, if need be.

        Raises:
            UnreachableError: the host does not answer.
        """
        try:
            return self._on_transport(lambda t: t.open_session(timeout=CHANNEL_TIMEOUT))
        except ChannelException as error:
            raise self._unreachable(
                f"it opens no session: {error.text}",
                hint="`MaxSessions` of its sshd bounds the sessions of one connection",
            ) from error

    def open_tunnel(self, hostname: str, port: int, timeout: float) -> Channel:
        """A channel to a port that the host can reach.

        Raises:
            UnreachableError: this host does not answer.
            ChannelException: this one does, but not the other.
        """

        def open_it(transport: Transport) -> Channel:
            try:
                return transport.open_channel(
                    "direct-tcpip", (hostname, port), ("127.0.0.1", 0), timeout=timeout
                )
            except ChannelException:
                raise
            except SSHException as error:
                if self.alive():
                    text = f"no connection within {timeout:g} s"
                    raise _PassingError(text, SILENT_TRIES) from error
                raise

        return self._on_transport(open_it)

    def alive(self) -> bool:
        """Whether the host still answers, by a session that is opened and closed again."""
        transport = self._transport
        if transport is None or not transport.is_active():
            return False
        try:
            transport.open_session(timeout=self.destination.patience).close()
        except ChannelException:
            return True  # an answer, if not the one that was hoped for
        except (SSHException, EOFError, OSError):
            self.close()
            return False
        return True

    def another(self) -> "Link":
        """A link of the same way that is not connected yet."""
        return Link(self.destination, self.via, accept_new=self._accept_new)

    def close(self) -> None:
        """End the connection, if there is one; the next use opens another."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Bound a request that has no deadline of its own, by ending the connection."""
        alarm = threading.Timer(CHANNEL_TIMEOUT, self.close)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()

    def lost(self, doing: str) -> UnreachableError:
        """The error for a connection that ended while something was going on."""
        return UnreachableError(
            f"the connection to {self.destination} was lost while {doing}",
            hint="whether that was done is not known; look again when the host answers",
        )

    def _on_transport(self, open_it: Callable[[Transport], Channel]) -> Channel:
        """Open a channel; on a new connection, where the kept one turns out to be dead."""
        cause = ""
        for _ in range(2):
            transport = self._opened()
            try:
                return open_it(transport)
            except ChannelException:
                raise
            except (SSHException, EOFError, OSError) as error:
                cause = str(error) or type(error).__name__
                self.close()
        raise self._unreachable(f"connected, and then: {cause}")

    def _opened(self) -> Transport:
        asked = time.monotonic()
        with self._lock:
            if self._transport is not None and self._transport.is_active():
                return self._transport
            if self._failure is not None and self._failure[0] > asked:
                raise self._failure[1]  # someone else has tried while this one waited
            try:
                self._transport = self._connect()
            except DdtreectlError as error:
                self._failure = (time.monotonic(), error)
                raise
            return self._transport

    def _connect(self) -> Transport:
        """Try until it is connected, or until trying again is of no use."""
        began = time.monotonic()
        failures: list[str] = []
        while True:
            try:
                return self._attempt()
            except _PassingError as error:
                failures.append(str(error))
                tries = error.tries
            late = time.monotonic() - began > NO_NEW_TRY_AFTER
            if late or len(failures) >= tries:
                raise self._unreachable(
                    "\n".join(f"try {n}: {text}" for n, text in enumerate(failures, 1))
                )
            time.sleep(self._jitter.uniform(0.05, 0.2) * 2 ** len(failures))

    def _attempt(self) -> Transport:
        connection = self._socket()
        transport = Transport(connection)
        try:
            self._shake_hands(transport)
            authentication.log_in(transport, self.destination)
        except BaseException:
            transport.close()
            raise
        transport.channel_timeout = CHANNEL_TIMEOUT
        transport.set_keepalive(KEEPALIVE)
        return transport

    def _shake_hands(self, transport: Transport) -> None:
        transport.banner_timeout = self.destination.connect_timeout
        transport.handshake_timeout = HANDSHAKE_TIMEOUT
        options = transport.get_security_options()
        options.ciphers = _first(options.ciphers, [FAST_CIPHER])
        kinds = [entry.kind for entry in host_keys.known(self.destination) if not entry.marker]
        if "ssh-rsa" in kinds:
            kinds += ["rsa-sha2-512", "rsa-sha2-256"]
        options.key_types = _first(options.key_types, kinds)
        with _passing_failures():
            transport.start_client(timeout=HANDSHAKE_TIMEOUT)
            if not transport.initial_kex_done:
                raise TimeoutError("no key exchange")
            key = transport.get_remote_server_key()
        host_keys.judge(
            self.destination, key.get_name(), key.asbytes(), accept_new=self._accept_new
        )

    def _socket(self) -> "socket.socket | Channel":
        destination = self.destination
        try:
            if self.via is not None:
                with about("its bastion"):
                    return self.via.open_tunnel(
                        destination.hostname, destination.port, destination.connect_timeout
                    )
            if destination.proxy_command:
                return _through_command(destination.proxy_command)
            return socket.create_connection(
                (destination.hostname, destination.port), destination.connect_timeout
            )
        except ChannelException as error:
            assert self.via is not None  # noqa: S101 - only a tunnel raises it
            raise self._unreachable(f"the bastion cannot connect to it: {error.text}") from error
        except TimeoutError:
            text = f"no connection within {destination.connect_timeout:g} s"
            raise _PassingError(text, SILENT_TRIES) from None
        except ConnectionResetError as error:
            raise _PassingError(f"the connection was reset ({error.strerror})") from error
        except OSError as error:
            raise self._unreachable((error.strerror or str(error)).lower()) from error

    def _unreachable(self, cause: str, hint: str = "") -> UnreachableError:
        through = f" through {self.via.destination}" if self.via else ""
        return UnreachableError(
            f"{self.destination}{through} does not answer", cause=cause, hint=hint
        )


@contextmanager
def _passing_failures() -> Iterator[None]:
    """Tell failures of the network and of a busy sshd from those that stay."""
    try:
        yield
    except IncompatiblePeer as error:
        raise HostKeyError(
            "the host offers nothing that is still safe", cause=str(error)
        ) from error
    except (SSHException, EOFError, OSError) as error:
        text = str(error) or "the other side closed the connection"
        if "protocol banner" in text:
            if isinstance(error.__context__, TimeoutError):
                text = "connected, and it says nothing: is the host hung?"
                raise _PassingError(text, SILENT_TRIES) from error
            text = BUSY
        raise _PassingError(text) from error


def _first(available: Sequence[str], preferred: Sequence[str]) -> tuple[str, ...]:
    chosen = [name for name in dict.fromkeys(preferred) if name in available]
    return (*chosen, *(name for name in available if name not in chosen))


def _through_command(command: str) -> socket.socket:
    """A socket whose other end is a command, as ProxyCommand wants it."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours

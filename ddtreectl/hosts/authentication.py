"""Logs in by public key: the keys that the configuration names, and those of the agent.

Each key that is offered counts as an attempt, and sshd ends the connection after a few; so the keys
that are named come first, and a failure is never tried again.
"""

from collections.abc import Iterator
from pathlib import Path

from paramiko import Agent, AgentKey, PKey, Transport
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    PasswordRequiredException,
    SSHException,
)

from ddtreectl.errors import UnreachableError
from ddtreectl.hosts.destination import Destination

TIMEOUT = 15.0


class AuthenticationError(UnreachableError):
    """The host lets none of the keys in."""


def log_in(transport: Transport, destination: Destination) -> None:
    """Offer one key after the other until one is accepted.

    Raises:
        AuthenticationError: none is.
    """
    transport.auth_timeout = TIMEOUT
    tried: list[str] = []
    for where, key in _keys(destination, tried):
        tried.append(f"offered {where}")
        try:
            if transport.auth_publickey(destination.user, key):
                raise _refused(destination, tried, "a second factor is asked for")
        except BadAuthenticationType as error:
            allowed = ", ".join(error.allowed_types)
            raise _refused(destination, tried, f"it takes {allowed} and no keys") from error
        except AuthenticationException:
            continue
        except (SSHException, EOFError, OSError) as error:
            raise _refused(destination, tried, f"it ended the connection: {error}") from error
        return
    raise _refused(destination, tried, "")


def _keys(destination: Destination, skipped: list[str]) -> Iterator[tuple[str, PKey]]:
    """The keys to offer, each with its name; why one is left out is added to `skipped`."""
    of_agent = list(_agent_keys()) if destination.agent else []
    named = {_public_part(path): path for path in destination.identities}
    offered = set()
    for key in of_agent:
        if key.get_base64() in named:
            offered.add(key.get_base64())
            yield f"{named[key.get_base64()]} of the agent", key
    for path in destination.identities:
        if not path.exists():
            continue
        try:
            own = PKey.from_path(path)
        except (PasswordRequiredException, TypeError):  # which one depends on the file's format
            if _public_part(path) not in offered:
                skipped.append(f"left out {path}: it has a passphrase (`ssh-add {path}`)")
        except (SSHException, OSError, ValueError, UnknownKeyType) as error:
            skipped.append(f"left out {path}: {str(error) or type(error).__name__}")
        else:
            if own.get_base64() not in offered:
                offered.add(own.get_base64())
                yield str(path), own
    if not destination.identities_only:
        for key in of_agent:
            if key.get_base64() not in offered:
                yield f"`{key.comment or key.get_name()}` of the agent", key


def _agent_keys() -> Iterator[AgentKey]:
    try:
        yield from Agent().get_keys()
    except (SSHException, OSError):
        return  # as `ssh` does: an agent that does not answer has no keys


def _public_part(path: Path) -> str:
    try:
        words = Path(f"{path}.pub").read_text().split()
    except (OSError, UnicodeDecodeError):
        return ""
    return words[1] if len(words) > 1 else ""


def _refused(destination: Destination, tried: list[str], why: str) -> AuthenticationError:
    nothing = "there is no key to offer: no identity file, and no agent that has one"
    lines = [why, *(tried or [nothing])]
    return AuthenticationError(
        f"`{destination.user}` is not let in",
        cause="\n".join(line for line in lines if line),
        hint=f"does `ssh {destination.asked}` log in? The inventory's `user` and `identity`, and "
        "`IdentitiesOnly` of the SSH configuration, choose who comes with which key",
    )

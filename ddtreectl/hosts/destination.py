"""Where a connection goes to, as OpenSSH itself resolves it.

`ssh -G` reads the configuration with Include, Match and all its rules, and prints the result. What
the inventory says is handed to it as options, so there is one set of rules and not two.
"""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

from ddtreectl.errors import DdtreectlError, UsageError
from ddtreectl.inventory.ssh import SshSettings

DEADLINE = 10.0
CONNECT_TIMEOUT = 10.0
PATIENCE = 15.0

_HOP = re.compile(r"(?:(?P<user>[^@]+)@)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?")


@dataclass(frozen=True)
class Destination:
    """One end of a connection.

    Attributes:
        asked: what ssh was asked for, as in the inventory.
        hostname: the name or address to connect to.
        port: the port.
        user: who logs in.
        identities: private keys, in the order in which they are offered.
        identities_only: whether the agent's other keys are left out.
        agent: whether the agent is asked at all.
        known_hosts: files of host keys; the first is where new ones are added.
        hash_known_hosts: whether names in it are hashed.
        host_key_alias: the name that host keys are filed under, instead of the hostname.
        connect_timeout: seconds until a connection must be there.
        patience: seconds of silence after which a host is asked whether it is still there, and
            seconds in which it must answer that.
        jump: bastions on the way, as in ProxyJump.
        proxy_command: a command whose input and output are the connection.
    """

    asked: str
    hostname: str
    port: int
    user: str
    identities: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: bool = True
    known_hosts: tuple[Path, ...] = ()
    hash_known_hosts: bool = False
    host_key_alias: str | None = None
    connect_timeout: float = CONNECT_TIMEOUT
    patience: float = PATIENCE
    jump: str | None = None
    proxy_command: str | None = None

    def __str__(self) -> str:
        """How messages name it."""
        name = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{name}:{self.port}"

    @property
    def filed_under(self) -> str:
        """The name that known_hosts has its key under."""
        name = self.host_key_alias or self.hostname
        return name if self.port == 22 or self.host_key_alias else f"[{name}]:{self.port}"


def resolve(asked: str, settings: SshSettings, user: str | None) -> Destination:
    """What `ssh` makes of the host `asked`, given the settings of the inventory.

    Raises:
        UsageError: the configuration or `identity` cannot be read, or there is no `ssh`.
    """
    options = []
    identity = Path(settings.identity).expanduser() if settings.identity else None
    if identity is not None and not identity.exists():
        raise UsageError(f"the identity {identity} is not there, which is to log in to `{asked}`")
    for flag, value in (
        ("-F", settings.config and str(Path(settings.config).expanduser())),
        ("-p", settings.port and str(settings.port)),
        ("-l", user),
        ("-i", identity and str(identity)),
        ("-J", settings.jump),
    ):
        options += [flag, value] if value else []
    try:
        done = subprocess.run(
            ["ssh", "-G", *options, "--", asked],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(
            "`ssh` is not installed on this machine, and its configuration is what counts",
            hint="install the OpenSSH client (Debian: `apt-get install openssh-client`)",
        ) from None
    except subprocess.TimeoutExpired:
        raise DdtreectlError(
            f"`ssh -G {asked}` does not end",
            hint="a `Match exec` of the SSH configuration may be waiting for something",
        ) from None
    if done.returncode != 0:
        raise UsageError(f"ssh cannot make anything of `{asked}`", cause=done.stderr)
    return parse(asked, done.stdout)


def resolve_hop(hop: str, settings: SshSettings) -> Destination:
    """What `ssh` makes of one bastion of ProxyJump, such as `admin@gate:2222`.

    Raises:
        UsageError: it cannot be read.
    """
    match = _HOP.fullmatch(hop.removeprefix("ssh://").rstrip("/"))
    if match is None:
        raise UsageError(f"`{hop}` is not a bastion that ssh could go through")
    port = int(match["port"]) if match["port"] else None
    own = SshSettings(config=settings.config, port=port)
    return resolve(match["six"] or match["host"], own, match["user"])


def parse(asked: str, text: str) -> Destination:
    """The destination that `ssh -G` printed."""
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key.lower(), []).append(value.strip())

    def one(key: str, otherwise: str = "") -> str:
        value = said.get(key, [otherwise])[0]
        return otherwise if value.lower() == "none" else value

    hostname, port, user = one("hostname", asked), int(one("port", "22")), one("user", getuser())
    tokens = {"h": hostname, "p": str(port), "r": user, "n": asked, "u": getuser(), "%": "%"}
    tokens["d"] = str(Path.home())
    timeout, alive = one("connecttimeout"), int(one("serveraliveinterval", "0"))
    files = [*one("userknownhostsfile").split(), *one("globalknownhostsfile").split()]
    return Destination(
        asked=asked,
        hostname=hostname,
        port=port,
        user=user,
        identities=_paths(said.get("identityfile", []), tokens),
        identities_only=one("identitiesonly") == "yes",
        agent=said.get("identityagent", [""])[0] != "none",
        known_hosts=_paths(files, tokens),
        hash_known_hosts=one("hashknownhosts") == "yes",
        host_key_alias=one("hostkeyalias") or None,
        connect_timeout=float(timeout) if timeout.isdigit() else CONNECT_TIMEOUT,
        patience=float(alive) or PATIENCE,
        jump=one("proxyjump") or None,
        proxy_command=expand(one("proxycommand"), tokens) or None,
    )


def _paths(values: Sequence[str], tokens: dict[str, str]) -> tuple[Path, ...]:
    words = [expand(value.strip('"'), tokens) for value in values if value.lower() != "none"]
    return tuple(Path(word).expanduser() for word in words if word)


def expand(text: str, tokens: dict[str, str]) -> str:
    """Replace `%h` and its kin; what is not among `tokens` stays."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)

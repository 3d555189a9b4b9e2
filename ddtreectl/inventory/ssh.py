"""How SSH reaches a host, as far as the inventory has a say in it."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ddtreectl.inventory.service import Strict

_JUMP = re.compile(r"[A-Za-z0-9_.@:\[\]/,%-]+")


def _own_path(value: str) -> str:
    if not value.startswith(("/", "~/")):
        raise ValueError(f"`{value}` is neither an absolute path nor one that begins with `~/`")
    if any(ord(character) < 33 for character in value):
        raise ValueError("the path holds a blank or a control character")
    return value


def _ssh_word(value: str) -> str:
    if not _JUMP.fullmatch(value) or value.startswith("-"):
        raise ValueError(f"`{value}` is nothing that ssh could connect to")
    return value


OwnPath = Annotated[str, AfterValidator(_own_path)]
"""A path on the operator's machine."""

SshName = Annotated[str, AfterValidator(_ssh_word)]
"""What one would type after `ssh`: a name, an address, or an alias of ssh_config."""


class SshSettings(Strict):
    """Settings of the connection; what is left out is as `ssh` has it (see `ssh -G HOST`).

    Attributes:
        config: the file that is read instead of ~/.ssh/config.
        port: where sshd listens.
        identity: a private key to offer first.
        jump: the bastion on the way, or several with commas between.
        host_keys: `strict` accepts only hosts that known_hosts has; `accept-new` adds the key of
            a host at its first contact. A key that has changed is never accepted.
    """

    config: OwnPath | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity: OwnPath | None = None
    jump: SshName | None = None
    host_keys: Literal["strict", "accept-new"] = "strict"

    def changed_by(self, other: "SshSettings") -> "SshSettings":
        """These settings, with those that `other` names in their place."""
        changes = other.model_dump(include=other.model_fields_set)
        return SshSettings.model_validate({**self.model_dump(), **changes})

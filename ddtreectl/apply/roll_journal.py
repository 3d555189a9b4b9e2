"""The journal of a roll, on the operator's machine: who has what, for the summary and `--resume`.

It is rewritten at every change, atomically, so that it also tells of a roll whose operator was
killed. A target that was begun and has not ended is deployed to again: the host sets right what
was interrupted there.
"""

import json
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ddtreectl.apply.operator import Operator, now
from ddtreectl.apply.operator_state import state_folder, write
from ddtreectl.apply.roll import Result, Rules, Target
from ddtreectl.errors import UsageError
from ddtreectl.inventory.service import Mode


class Request(BaseModel):
    """What is deployed to every target.

    Attributes:
        mode: how the service decodes.
        budget: nodes of the tree besides the root, if not the inventory's.
        topk: candidates for each depth, likewise.
        model: the model, likewise.
        drafter: the drafter, likewise.
        force: swap even where the slot serves the same already.
        new_gpu: a slot may be bound to another card than before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode
    budget: int | Literal["auto"] | None = None
    topk: int | None = None
    model: str | None = None
    drafter: str | None = None
    force: bool = False
    new_gpu: bool = False


@dataclass
class RollJournal:
    """One roll.

    Attributes:
        path: the file.
        inventory: the inventory that its hosts are of.
        inventory_sha256: of that file, when the roll began.
        request: what is deployed.
        rules: how it goes on.
        targets: by host.
        command: what was typed.
        began: ISO 8601.
        halted: why targets were left out.
    """

    path: Path
    inventory: str
    request: Request
    rules: Rules
    targets: dict[str, Target]
    command: str
    began: str
    halted: str = ""
    inventory_sha256: str = ""

    @classmethod
    def new(
        cls,
        inventory: Path,
        request: Request,
        rules: Rules,
        targets: list[Target],
        operator: Operator,
    ) -> "RollJournal":
        """The journal of a roll that is about to begin; it is written at once.

        Raises:
            DdtreectlError: it cannot be.
        """
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}.json"
        by_host = {target.host: target for target in targets}
        where = str(inventory.resolve())
        found = cls(
            folder() / name,
            where,
            request,
            rules,
            by_host,
            operator.command,
            now(),
            inventory_sha256=fingerprint(inventory),
        )
        found.write()
        return found

    @property
    def name(self) -> str:
        """What `--resume` calls it."""
        return self.path.stem

    def record(self, target: Target) -> None:
        """Note what became of a target."""
        self.targets[target.host] = target
        self.write()

    def write(self) -> None:
        """Put it on the disk.

        Raises:
            DdtreectlError: the disk does not take it.
        """
        content = {
            "inventory": self.inventory,
            "inventory_sha256": self.inventory_sha256,
            "command": self.command,
            "began": self.began,
            "halted": self.halted,
            "request": self.request.model_dump(mode="json"),
            "rules": asdict(self.rules),
            "targets": [asdict(target) for target in self.targets.values()],
        }
        write(self.path, json.dumps(content, indent=1))


def fingerprint(inventory: Path) -> str:
    """The hash of an inventory file; nothing where it cannot be read."""
    try:
        return sha256(inventory.read_bytes()).hexdigest()
    except OSError:
        return ""


def folder() -> Path:
    """Where journals are kept."""
    return state_folder() / "rolls"


def find(name: str, inventory: Path) -> RollJournal:
    """The roll called `name`, or with `last` the newest one of an inventory.

    Raises:
        UsageError: there is none, or its file is damaged.
    """
    where = str(inventory.resolve())
    if name != "last":
        return _read(folder() / f"{name}.json")
    for path in sorted(folder().glob("*.json"), reverse=True):
        found = _read(path)
        if found.inventory == where:
            return found
    raise UsageError(f"no roll over hosts of `{inventory}` was begun from here")


def _read(path: Path) -> RollJournal:
    try:
        content = json.loads(path.read_text())
        targets = [
            Target(**{**entry, "result": Result(entry["result"])}) for entry in content["targets"]
        ]
        return RollJournal(
            path=path,
            inventory=content["inventory"],
            request=Request.model_validate(content["request"]),
            rules=Rules(**content["rules"]),
            targets={target.host: target for target in targets},
            command=content["command"],
            began=content["began"],
            halted=content["halted"],
            inventory_sha256=content["inventory_sha256"],
        )
    except FileNotFoundError:
        names = ", ".join(sorted(entry.stem for entry in folder().glob("*.json"))[-5:])
        raise UsageError(
            f"there is no roll `{path.stem}`", hint=f"the newest are: {names or 'none'}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise UsageError(f"the journal `{path}` is damaged", cause=str(error)) from error

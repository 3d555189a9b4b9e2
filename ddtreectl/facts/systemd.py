"""The state of units, from `systemctl show`."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import join

from ddtreectl.facts.output import Output, as_int

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "InvocationID",
    "ExecMainStatus",
    "NRestarts",
    "NeedDaemonReload",
    "FragmentPath",
    "DropInPaths",
    "UnitFileState",
)


@dataclass(frozen=True)
class Unit:
    """A unit as the service manager sees it; what it does not know is None.

    Attributes:
        name: such as `ddtree-gpu1-tree.service`.
        load: `loaded`, `not-found` …
        active: `active`, `activating`, `inactive`, `failed` …
        sub: `running`, `start`, `dead` …
        main_pid: the process of the service.
        invocation: the id of this run of the unit; docker-systemctl-replacement has none.
        result: why the last run ended, such as `exit-code` or `oom-kill`.
        exit_status: of the main process of the last run.
        restarts: how often the service manager has restarted it by itself.
        needs_reload: whether the file on disk is newer than what is loaded.
        enabled: whether it starts at boot.
        fragment: the unit file that is loaded; docker-systemctl-replacement does not say.
        drop_ins: files that change this unit, and not every unit alike.
    """

    name: str
    load: str = "not-found"
    active: str = "inactive"
    sub: str = "dead"
    main_pid: int | None = None
    invocation: str | None = None
    result: str | None = None
    exit_status: int | None = None
    restarts: int | None = None
    needs_reload: bool | None = None
    enabled: bool | None = None
    fragment: str | None = None
    drop_ins: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        """Whether it has, or is getting, a process."""
        return self.active in {"active", "activating", "reloading", "deactivating"}

    def __str__(self) -> str:
        """How messages show its state."""
        if self.result == "exec-condition" and not self.running:
            why = "its GPU was gone or drained, or its service had moved"
            return f"down: its last start was skipped, as {why}"
        parts = [f"{self.active} ({self.sub})"]
        if self.result and self.result != "success":
            parts.append(f"result {self.result}")
        if self.exit_status:
            parts.append(f"exit status {self.exit_status}")
        return ", ".join(parts)


def command(show: Sequence[str], otherwise: str | None, files: Sequence[str]) -> str:
    """Show the state of units, by `show` where systemd runs.

    The service manager looks for a unit that it is asked about by its name in every folder of
    units, which takes longer than all the rest. So one without a file is asked about by a pattern,
    which stands for it only if the service manager has it already.

    Args:
        show: the command, but for the names of units.
        otherwise: a command for a shell where systemd does not run, if there is one.
        files: the paths of the units' files.
    """
    return (
        "if [ -d /run/systemd/system ]; then set --; "
        f"for f in {join(files)}; do n=${{f##*/}}; "
        '[ -e "$f" ] || [ -L "$f" ] || n="${n%?}[e]"; set -- "$@" "$n"; done; '
        f'exec {join(show)} "$@"; else {otherwise or "true"}; fi'
    )


def parse(output: Output) -> dict[str, Unit]:
    """The units by name; those that no block of the output names are absent."""
    units = {}
    for block in output.stdout.split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        name = values.get("Id")
        if not name:
            continue
        units[name] = Unit(
            name=name,
            load=values.get("LoadState") or "not-found",
            active=values.get("ActiveState") or "inactive",
            sub=values.get("SubState") or "dead",
            main_pid=as_int(values.get("MainPID")) or None,
            invocation=values.get("InvocationID") or None,
            result=values.get("Result") or None,
            exit_status=as_int(values.get("ExecMainStatus")),
            restarts=as_int(values.get("NRestarts")),
            needs_reload=_yes(values.get("NeedDaemonReload")),
            enabled=_enabled(values.get("UnitFileState")),
            fragment=values.get("FragmentPath") or None,
            drop_ins=_of_unit(values.get("DropInPaths") or "", name),
        )
    return units


def _of_unit(paths: str, name: str) -> tuple[str, ...]:
    """Those of the drop-ins that are for the unit alone; containers bring some for all services."""
    return tuple(path for path in paths.split() if f"/{name}.d/" in path)


def _yes(value: str | None) -> bool | None:
    return {"yes": True, "no": False}.get(value or "")


def _enabled(value: str | None) -> bool | None:
    return value.startswith("enabled") if value else None

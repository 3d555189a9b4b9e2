"""Renders the unit of a generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jinja2 import TemplateError

from ddtreectl import __version__
from ddtreectl.errors import DdtreectlError
from ddtreectl.facts.gpu import Gpu
from ddtreectl.facts.processes import MARK
from ddtreectl.inventory.layout import Layout, slot_units, unit_name
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.units import (
    confinement,
    engine,
    escape,
    gpu_nodes,
    guard,
    restart,
    sglang,
    xid_guard,
)
from ddtreectl.units.templates import templates

RESTART_SECONDS = 10
WATCHDOG_SECONDS = 120


@dataclass(frozen=True)
class RenderedUnit:
    """The unit of one generation.

    Attributes:
        name: the unit's name.
        text: the unit file.
        environment_file: the content of the file that its EnvironmentFile= names.
        argv: what ExecStart= means.
        scripts: what it runs before it starts, by the name of the file in the generation's folder.
    """

    name: str
    text: str
    environment_file: str
    argv: tuple[str, ...]
    scripts: Mapping[str, str] = field(default_factory=dict)


def render(
    *,
    layout: Layout,
    slot: str,
    service: ServiceSpec,
    generation: int,
    environment: str,
    gpus: Sequence[Gpu] = (),
    guarded: tuple[str, str] | None = None,
    python: str = "python3",
) -> RenderedUnit:
    """The unit of `generation` of a slot.

    Args:
        layout: where things lie on the host.
        slot: the slot's name.
        service: what the unit serves.
        generation: the generation's number; paths in the unit are this generation's for ever.
        environment: the name of the environment that the engine runs from.
        gpus: the cards that the unit is bound to, as the driver names them.
        guarded: the URL of the router, and HOST/SLOT, where it is to be asked before a start.
        python: an interpreter of the host. What runs as root is none of the environment's programs:
            one that was taken over has what another host said.

    Raises:
        DdtreectlError: a value has no place in a unit, or the template is broken.
    """
    name = unit_name(slot, service.mode)
    folder = layout.generation(slot, generation)
    programs = f"{layout.environment(environment)}/bin"
    uuids = [gpu.uuid or "" for gpu in gpus]
    families: tuple[str, ...]
    if service.backend == "sglang":
        capabilities = [gpu.compute_capability for gpu in gpus if gpu.compute_capability]
        argv = sglang.argv(f"{programs}/python", service, capabilities)
        settings, margin = sglang.environment(uuids), sglang.DRAIN_MARGIN
        families = (*confinement.ADDRESS_FAMILIES, "AF_NETLINK")  # NCCL lists interfaces
    else:
        argv = engine.argv(f"{programs}/ddtree-engine", service)
        settings, margin = engine.environment(uuids), engine.DRAIN_MARGIN
        families = confinement.ADDRESS_FAMILIES
    cards = any(uuids)
    minors = [gpu.minor for gpu in gpus if gpu.minor is not None]
    what = f"DDTree {service.mode} on {slot}, port {service.port}"
    try:
        text = (
            templates()
            .get_template("engine.service.j2")
            .render(
                version=__version__,
                description=escape.setting(f"{what} (generation {generation})"),
                conflicts=[unit for unit in slot_units(slot) if unit != name],
                exec_start=escape.exec_line(argv),
                guard=escape.exec_line(guard.argv(f"{programs}/python", folder, *guarded))
                if guarded
                else "",
                environment=escape.environment({MARK: folder}),
                environment_file=escape.setting(f"{folder}/environment"),
                generation_dir=escape.setting(folder),
                generation=generation,
                slot=slot,
                mode=service.mode.value,
                environment_name=environment,
                start_timeout=service.start_timeout,
                stop_timeout=service.stop_timeout + margin,
                notifies=service.backend == "engine",
                confinement=confinement.lines(
                    confinement.settings(minors if gpus else None, families)
                ),
                credential=_credential(service),
                restart_seconds=RESTART_SECONDS,
                nodes=gpu_nodes.NAME if gpus else "",
                moved=escape.setting(layout.moved(slot)),
                condition=escape.exec_line(restart.condition(gpus)) if cards else "",
                xid_guard=escape.exec_line(xid_guard.argv(python, folder, layout.root, name, gpus))
                if cards
                else "",
                back_off=escape.exec_line(restart.back_off(name)) if cards else "",
                backed_off=sum(restart.BACK_OFF) if cards else 0,
                watchdog_seconds=WATCHDOG_SECONDS,
            )
        )
        variables = escape.environment_file(settings)
    except (escape.EscapeError, TemplateError) as error:
        raise DdtreectlError(f"unit `{name}` cannot be rendered", cause=str(error)) from error
    scripts = {guard.NAME: guard.script()} if guarded else {}
    scripts |= {xid_guard.NAME: xid_guard.script()} if cards else {}
    return RenderedUnit(name, text, variables, tuple(argv), scripts)


def _credential(service: ServiceSpec) -> str:
    """The value of LoadCredential=; the name is the file's own, which the engine looks for."""
    if not service.api_key:
        return ""
    name = service.api_key.rpartition("/")[2]
    return f"{escape.setting(name)}:{escape.setting(service.api_key)}"

"""The unit that makes the device nodes of a host's GPUs before a service of them starts.

A service may open the nodes of its card and make none, and systemd lets a unit open only those of
its nodes that are there when it starts. NVIDIA's own programs call `nvidia-modprobe`, which is
setuid root, when a node is missing; a service without any right cannot. So a unit does that first.

Source: nvidia-modprobe(1): without options it loads the driver; `-c` makes the node with a minor
number, 255 that of /dev/nvidiactl; `-u` is about the module of unified memory, whose minor 0 is
/dev/nvidia-uvm. It recommends the distribution's own ways where there are any: nodes that are there
are left alone.
"""

from ddtreectl import __version__
from ddtreectl.units import escape
from ddtreectl.units.templates import templates

NAME = "ddtree-gpu-nodes.service"
PROGRAM = "/usr/bin/nvidia-modprobe"
CONTROL = 255

_SCRIPT = (
    f"{PROGRAM}; set -- -c={CONTROL}; "
    "for minor in $(sed -n 's/^Device Minor:[^0-9]*//p' "
    "/proc/driver/nvidia/gpus/*/information 2>/dev/null); do "
    f'set -- "$@" -c=$minor; done; {PROGRAM} "$@"; exec {PROGRAM} -u -c=0'
)


def render() -> str:
    """The unit file."""
    return (
        templates()
        .get_template("gpu_nodes.service.j2")
        .render(
            version=__version__,
            description=escape.setting("Device nodes of the GPUs, for services that make none"),
            program=PROGRAM,
            exec_start=escape.exec_line(["/bin/sh", "-c", _SCRIPT]),
        )
    )

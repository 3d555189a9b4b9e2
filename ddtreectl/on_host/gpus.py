"""What nvidia-smi and the files of the driver tell of GPUs."""

import os

from ddtreectl.on_host.commands import said, there

NODES = "/proc/driver/nvidia/gpus"
IDLE = 64  # MiB; a process that computes holds more, for its context alone


def tell_gpus(columns: "list[str]", form: str, apps: str, otherwise: str) -> None:
    """Print driver version, device nodes, GPUs and compute processes, each under its heading.

    Args:
        columns: sets of fields to ask for.
        form: option of nvidia-smi for the form of its answer.
        apps: option that asks for compute processes.
        otherwise: what a shell does where the first answer is not all that there is: `$fields` and
            `$code` are of that answer.
    """
    print("driver")
    show("/sys/module/nvidia/version")
    print("nodes")
    for name in sorted(os.listdir(NODES)) if os.path.isdir(NODES) else ():
        show(NODES + "/" + name + "/information")
    if there("nvidia-smi") is None:
        print("absent")
        return
    if stuck():
        print("stuck")
        return
    fields = columns[0]
    print("gpus " + fields)
    code, answer = said(["nvidia-smi", "--query-gpu=" + fields, form], errors=True)
    print(answer, end="")
    if code != 0:
        code = code if code > 0 else 128 - code
        told = "fields=" + fields + "; code=" + str(code) + "; " + otherwise
        print(said(["sh", "-c", told], errors=True)[1], end="")
        return
    print("status 0\nprocesses")
    place = fields.split(",").index("memory.used")
    if any(in_use(line.split(","), place) for line in answer.split("\n")):
        print(said(["nvidia-smi", apps, form], errors=True)[1], end="")


def in_use(cells: "list[str]", place: int) -> bool:
    """Whether a process may hold memory of a GPU, by its row."""
    if len(cells) <= place:
        return False
    used = cells[place].strip()
    return not used.isdigit() or int(used) > IDLE


def stuck() -> bool:
    """Whether an nvidia-smi hangs in the kernel (state D) for longer than it may take."""
    with open("/proc/uptime", encoding="utf-8") as file:
        now = float(file.read().split()[0])
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open("/proc/" + pid + "/stat", encoding="utf-8", errors="replace") as file:
                head, _, rest = file.read().rpartition(")")
        except OSError:
            continue  # it has ended
        fields = rest.split()
        if head.partition("(")[2] != "nvidia-smi" or fields[0] != "D":
            continue
        if now - int(fields[19]) / os.sysconf("SC_CLK_TCK") > 30:
            return True
    return False


def show(path: str) -> None:
    """Print a file, if it is there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            print(file.read(), end="")
    except OSError:
        return

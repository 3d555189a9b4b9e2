"""The command by which a unit asks, before it starts, whether its service was moved away."""

from ddtreectl import bundle

NAME = "slot_guard.py"
MOVED = 75
"""The one exit status of the guard that keeps a service from starting."""

# Whatever else goes wrong, a missing interpreter included, the service starts.
_SHELL = f'"$0" -IS "$1" "$2" "$3"; [ $? -ne {MOVED} ]'


def script() -> str:
    """The guard itself, which a generation carries."""
    return (bundle.templates() / NAME).read_text()


def drop_in(unit_text: str) -> str:
    """A drop-in with which a unit starts whoever stands for its slot; its other conditions hold."""
    kept = [
        line
        for line in unit_text.splitlines()
        if line.startswith("ExecCondition=") and f"/{NAME} " not in f"{line} "
    ]
    return "\n".join(["[Service]", "ExecCondition=", *kept, ""])


def argv(python: str, folder: str, router: str, slot: str) -> list[str]:
    """The words of `ExecCondition=`.

    Args:
        python: an interpreter.
        folder: of the generation, where the guard is.
        router: the router's URL, as the host reaches it.
        slot: HOST/SLOT.
    """
    return ["/bin/sh", "-c", _SHELL, python, f"{folder}/{NAME}", router, slot]

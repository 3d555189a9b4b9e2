"""The files that ddtreectl carries: unit templates, inventories, constraints, the engine's wheel.

In an installed wheel they lie in `ddtreectl/_bundle`; in a checkout, at the root of the repository.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
BUNDLE = PACKAGE / "_bundle"
CHECKOUT = PACKAGE.parent


def installed() -> bool:
    """Whether this is an installed wheel and not a checkout."""
    return BUNDLE.is_dir()


def root() -> Path:
    """The folder that holds `templates`, `inventories` and `constraints.txt`."""
    return BUNDLE if installed() else CHECKOUT


def templates() -> Path:
    """The Jinja templates of the systemd units."""
    return root() / "templates" / "systemd"


def inventories() -> Path:
    """The example inventories."""
    return root() / "inventories"


def constraints() -> Path:
    """The pins that an environment is built with."""
    return root() / "constraints.txt"


def engine_wheels() -> Path:
    """The folder with the engine's wheel (installed wheels only)."""
    return BUNDLE / "wheels"


def engine_source() -> Path:
    """The engine's source tree (checkouts only)."""
    return CHECKOUT / "engine"

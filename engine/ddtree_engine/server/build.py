"""What is installed: a hash of this package's files, and versions."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ddtree_engine

PACKAGES = ("torch", "triton", "safetensors", "tokenizers", "fastapi", "uvicorn")


@cache
def build() -> str:
    """Return `sha256:…` over names and content of the package's source files.

    The same for a wheel and for the source tree that it was made of.
    """
    root = Path(ddtree_engine.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return f"sha256:{digest.hexdigest()}"


@cache
def versions() -> dict[str, str | None]:
    """Return the versions that decide how the engine behaves; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found

"""The commands that build and verify an environment on a host.

An environment is made at its final path, because a virtual environment cannot move. It counts as
finished once `environment.json` is there, and that file is put last, by an atomic rename: a build
that was interrupted leaves a folder without it, which the next build removes. Each command holds a
lock while it runs: pip may outlive an operator who was killed, and the next build waits for it.

Where packages come from is the host's own pip configuration.
"""

import json
from shlex import quote

MARKER = "environment.json"
BUILD_DEADLINE = 3600.0
VERIFY_DEADLINE = 300.0
LOCK_WAIT = 900

_FINGERPRINT = """
import importlib.metadata, json, platform, sys, sysconfig
import torch
import ddtree_engine
print(json.dumps({
    "python": platform.python_version(), "extension": sysconfig.get_config_var("EXT_SUFFIX"),
    "libc": " ".join(platform.libc_ver()), "torch": torch.__version__, "cuda": torch.version.cuda,
    "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI), "arch_list": torch.cuda.get_arch_list(),
    "packages": {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()},
}))
"""


def create(python: str, folder: str) -> list[str]:
    """Remove what an interrupted build left, and make an empty environment."""
    where = quote(folder)
    script = f"set -e; rm -rf {where}; exec {quote(python)} -m venv {where}"
    return [*_locked(folder), "sh", "-c", script]


def _locked(folder: str) -> list[str]:
    return ["flock", "-w", str(LOCK_WAIT), "-E", "75", f"{folder}.lock"]


def install(folder: str, wheel: str, constraints: str) -> list[str]:
    """Install the engine and what it needs, at the pinned versions."""
    return [
        *_locked(folder),
        *(f"{folder}/bin/python", "-m", "pip", "install"),
        *("--no-input", "--progress-bar", "off", "--disable-pip-version-check"),
        *("--constraint", constraints, wheel),
    ]


def consistent(folder: str) -> list[str]:
    """Check that every installed package has what it asks for."""
    return [f"{folder}/bin/python", "-m", "pip", "check", "--disable-pip-version-check"]


def fingerprint(folder: str) -> list[str]:
    """Import what the engine needs and print what it was built for, as JSON."""
    return [f"{folder}/bin/python", "-c", _FINGERPRINT]


def marker(name: str, abi: str, fingerprint_text: str) -> bytes:
    """The content of the file that makes an environment count as finished."""
    content = {"name": name, "abi": abi, "fingerprint": json.loads(fingerprint_text)}
    return json.dumps(content, sort_keys=True).encode()

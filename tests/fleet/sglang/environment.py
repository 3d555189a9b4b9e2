"""An environment with the stand-in for SGLang, put on a host as if it had been provisioned."""

import json
from pathlib import Path

from ruamel.yaml import YAML

HERE = Path(__file__).parent
VERSIONS = HERE.parents[1] / "ctl" / "data" / "sglang_versions.yaml"
NAME = "sglang-cu130-0123456789ab"

SPEC_INFO = """\
REGISTERED = set()


class SpeculativeAlgorithm:
    @classmethod
    def from_string(cls, name):
        if name not in {*ALGORITHMS, *REGISTERED}:
            raise ValueError(f"Unknown speculative algorithm name: {name}")
        return name


ALGORITHMS = ["""

PLUGINS = """\
import importlib.util


def load_plugins():
    if importlib.util.find_spec("ddtree_plugin"):
        import ddtree_plugin
"""

PLUGIN = """\
from sglang.srt.speculative.spec_info import REGISTERED

REGISTERED.add("DDTREE")
"""


def install(root: Path, version: str) -> Path:
    """Write the environment below `root`, the `/` of a host. Returns the folder of its packages."""
    table = YAML(typ="safe").load(VERSIONS.read_text())
    environments = Path("/var/lib/ddtree/environments")
    folder = environments / NAME
    packages = folder / "lib"
    algorithms = ", ".join(repr(name) for name in table[version]["algorithms"])
    files = {
        folder / "bin/python": f'#!/bin/sh\nPYTHONPATH={packages} exec /usr/bin/python3 "$@"\n',
        folder / "environment.json": json.dumps({"name": NAME}),
        environments.parent / "provisioned.json": json.dumps(
            {
                "sglang": {
                    "backend": "sglang",
                    "environment": NAME,
                    "torch": "2.11.0",
                    "build": "cu130",
                    "taken_from": "ct129",
                }
            }
        ),
        packages / "sglang/__init__.py": "",
        packages / "sglang/launch_server.py": (HERE / "launch_server.py").read_text(),
        packages / "sglang/versions.json": json.dumps(table),
        packages / "sglang/srt/__init__.py": "",
        packages / "sglang/srt/plugins.py": PLUGINS,
        packages / "sglang/srt/speculative/__init__.py": "",
        packages / "sglang/srt/speculative/spec_info.py": f"{SPEC_INFO}{algorithms}]\n",
        packages / f"sglang-{version}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        ),
    }
    for path, text in files.items():
        place = root / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (root / (folder / "bin/python").relative_to("/")).chmod(0o755)
    return root / packages.relative_to("/")


def add_plugin(packages: Path) -> None:
    """Have DDTREE registered, as a plugin's entry point does it."""
    (packages / "ddtree_plugin.py").write_text(PLUGIN)


def model(root: Path, name: str, *faults: str) -> str:
    """Put a folder on a host that passes for a model, and return its path there."""
    path = Path("/srv") / name
    folder = root / path.relative_to("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "faults").write_text("\n".join(faults))
    return str(path)

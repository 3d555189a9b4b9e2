"""A wheel of the stand-in engine, which a host without network can install: it needs nothing."""

import zipfile
from pathlib import Path

from ddtreectl import bundle
from ddtreectl.env.lock import pinned

ENGINE = Path(__file__).parents[1] / "ctl" / "data" / "contract_engine.py"
VERSION = "0.0.1"

BUILD = "cu130"

# What an inspection of the environment asks torch for: the build that a lab's GPUs get.
TORCH = f"""\
__version__ = "{pinned("torch", bundle.constraints().read_text())}+{BUILD}"

class version:
    cuda = "13.0"

class _C:
    _GLIBCXX_USE_CXX11_ABI = True

class cuda:
    get_arch_list = staticmethod(lambda: ["sm_120"])
"""


def build(folder: Path, *, edition: str = "") -> Path:
    """Write the wheel, and return where it is.

    Args:
        folder: where it goes.
        edition: makes another wheel of it, for which hosts need another environment.
    """
    info = f"ddtree_engine-{VERSION}.dist-info"
    files = {
        "ddtree_engine/__init__.py": f"# {edition}\n" if edition else "",
        "ddtree_engine/main.py": ENGINE.read_text(),
        "torch/__init__.py": TORCH,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: ddtree-engine\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nddtree-engine = ddtree_engine.main:main\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    path = folder / f"ddtree_engine-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(zipfile.ZipInfo(name), content)  # with a fixed date: the same hash
    return path

"""Puts into the wheel of ddtreectl what it deploys with: templates, inventories, pins, the engine.

The engine's wheel is built by hatchling from `engine/`, in this process and without a network. An
editable install carries nothing: it reads the checkout.
"""

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder

BUNDLE = "ddtreectl/_bundle"


class BundleHook(BuildHookInterface[Any]):
    """Adds the bundle to a standard wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the engine's wheel and name the files to include."""
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        include = build_data["force_include"]
        for name in ("templates", "inventories", "constraints.txt"):
            include[str(root / name)] = f"{BUNDLE}/{name}"
        self._folder = tempfile.TemporaryDirectory(prefix="ddtree-engine-")
        builder = WheelBuilder(str(root / "engine"))
        for path in builder.build(directory=self._folder.name, versions=["standard"]):
            include[path] = f"{BUNDLE}/wheels/{Path(path).name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the engine's wheel, which is in the artifact now."""
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()

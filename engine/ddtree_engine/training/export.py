"""placeholder."""

from pathlib import Path

from ddtree_engine.training.run_folder import RunFolder


def export(run: RunFolder, to: Path) -> None:
    """Placeholder."""
    raise NotImplementedError

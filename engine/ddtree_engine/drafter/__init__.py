"""The drafter: DFlash (arXiv 2602.06036), which fills a block of masks in one pass."""

from ddtree_engine.drafter.load import check_drafter, load_drafter
from ddtree_engine.drafter.model import DrafterModel

__all__ = ["DrafterModel", "check_drafter", "load_drafter"]

"""The target: a hybrid of gated delta net and attention layers, or a dense transformer."""

from ddtree_engine.target.load import FLOAT32_PARAMETERS, check_target, load_target
from ddtree_engine.target.model import TargetModel, Verification
from ddtree_engine.target.prefill import prefill

__all__ = [
    "FLOAT32_PARAMETERS",
    "TargetModel",
    "Verification",
    "check_target",
    "load_target",
    "prefill",
]

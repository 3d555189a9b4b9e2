"""`ddtree-engine train`: the bundled models, from the corpus on."""

from __future__ import annotations

from ddtree_engine.training.command import add_arguments, run

SUMMARY = "Train a hybrid target and its DFlash drafter, in resumable steps."

__all__ = ["SUMMARY", "add_arguments", "run"]

"""`ddtree-engine train`: the bundled models, from the corpus on."""

from __future__ import annotations

import argparse
import logging

from ddtree_engine.training import arguments as training_arguments

SUMMARY = "Train a hybrid target and its DFlash drafter, in resumable steps."

add_arguments = training_arguments.add_arguments


def run(arguments: argparse.Namespace) -> int:
    """Train, with a line on stderr for every step of the way; return the exit code."""
    from ddtree_engine.training import command

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    return command.run(arguments)

"""A look at checkpoints costs a host little: the compiler of PyTorch has no part in it."""

import subprocess
import sys

PROGRAM = """
import sys
from ddtree_engine.cli.main import main
code = main(["inspect", "--model", "bundled", "--drafter", "bundled", "--json"])
sys.exit(code or int("torch._dynamo" in sys.modules))
"""


def test_an_inspection_does_without_the_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"target"' in done.stdout

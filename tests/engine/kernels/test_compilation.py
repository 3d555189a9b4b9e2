"""Every kernel compiles for GPUs of two kinds and fits them; no GPU is needed for that.

The interpreter accepts what the compiler does not, so this is what keeps a kernel from failing on a
GPU first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KIB = 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "memory"),
    [pytest.param(90, 227 * KIB, id="H100, H200"), pytest.param(120, 99 * KIB, id="SM 12.0")],
)
def test_compiles_and_fits(capability: int, memory: int) -> None:
    pytest.importorskip("triton.backends.nvidia")
    # Triton gives a process the compiler or the interpreter; this one may have the other.
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, script, str(capability), str(memory)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    needs = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert len(needs) == 42
    assert {name: n for name, n in needs.items() if int(n) > memory} == {}

"""Packages that do not fit each other, installed and inspected: each mismatch really happens."""

import subprocess
from pathlib import Path

import pytest

from ddtreectl.env import inspection
from ddtreectl.env.backends import BACKENDS
from ddtreectl.env.inspection import Inspection, parse
from ddtreectl.env.verify import Expected, Problem, problems, runs_on
from tests.ctl.env import wheels
from tests.ctl.env.conftest import Inspect

ENGINE = BACKENDS["engine"]
CU128 = Expected(ENGINE, build="cu128", torch="2.13.0", capabilities=((12, 0),))


def fitting(folder: Path) -> dict[str, Path]:
    """The wheels of an environment for cu128 in which everything fits."""
    return {
        "engine": wheels.engine(folder),
        "torch": wheels.torch(folder, "cu128"),
        "runtime": wheels.cuda_runtime(folder, 12),
        "kernels": wheels.kernels(folder, "cu128"),
        "soundfile": wheels.module(folder, "soundfile", "0.13.1"),
        "xgrammar": wheels.module(folder, "xgrammar", "0.2.1"),
    }


def told(found: list[Problem]) -> str:
    return "\n".join(f"{problem}\n{problem.hint}" for problem in found)


def test_what_fits_is_told_to_fit(tmp_path: Path, inspect: Inspect) -> None:
    found = inspect([*fitting(tmp_path).values()])
    assert problems(found, CU128) == []
    assert found.fingerprint()["cuda"] == "12.8"
    assert found.imports["fast_kernels"] is None
    assert found.imports["ddtree_engine.main"] is None
    assert {library.path for library in found.libraries} == {
        "torch/lib/libc10.so",
        "fast_kernels/ops.so",
        "nvidia/cuda_runtime/lib/libcudart.so.12",
    }


def test_kernels_for_another_cuda_than_torch(tmp_path: Path, inspect: Inspect) -> None:
    """The story: packages that were built for +cu130 on a host with +cu128."""
    parts = fitting(tmp_path) | {"kernels": wheels.kernels(tmp_path, "cu130")}
    found = problems(inspect([*parts.values()]), CU128)
    assert found[0].what == (
        "`fast_kernels` was built for CUDA 13, and torch 2.13.0+cu128 for CUDA 12.8"
    )
    assert "fast_kernels/ops.so needs libcudart.so.13" in found[0].cause


def test_kernels_for_an_older_cuda_than_torch(tmp_path: Path, inspect: Inspect) -> None:
    parts = fitting(tmp_path)
    parts |= {
        "torch": wheels.torch(tmp_path, "cu130"),
        "runtime": wheels.cuda_runtime(tmp_path, 13),
    }
    expected = Expected(ENGINE, build="cu130")
    found = told(problems(inspect([*parts.values()]), expected))
    assert "`fast_kernels` was built for CUDA 12, and torch 2.13.0+cu130 for CUDA 13.0" in found


def test_libraries_of_two_cudas(tmp_path: Path, inspect: Inspect) -> None:
    parts = [*fitting(tmp_path).values(), wheels.cuda_runtime(tmp_path, 13)]
    found = told(problems(inspect(parts), CU128))
    assert "CUDA 12: nvidia-cuda-runtime-cu12" in found
    assert "CUDA 13: nvidia-cuda-runtime" in found


def test_the_old_string(tmp_path: Path, inspect: Inspect) -> None:
    parts = fitting(tmp_path)
    parts |= {"kernels": wheels.kernels(tmp_path, "cu128", symbol=wheels.OLD_STRING)}
    said = told(problems(inspect([*parts.values()]), CU128))
    assert "`fast_kernels` was built for the old C++ ABI" in said
    assert f"undefined symbol: {wheels.OLD_STRING}" in said
    assert "was built for another torch, or for the other C++ ABI" in said


def test_a_newer_glibc(tmp_path: Path, inspect: Inspect) -> None:
    parts = fitting(tmp_path)
    parts |= {"kernels": wheels.kernels(tmp_path, "cu128", glibc="2.99")}
    said = told(problems(inspect([*parts.values()]), CU128))
    assert "`fast_kernels` needs glibc 2.99, the host has 2." in said
    assert "version `GLIBC_2.99' not found" in said


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("soundfile", "`soundfile` is not installed, and ddtree-engine requires it"),
        ("kernels", "No module named 'fast_kernels'"),
        ("runtime", "libcudart.so.12: cannot open shared object file"),
        ("torch", "`torch` cannot be imported"),
        ("engine", "`ddtree-engine` is not installed"),
    ],
)
def test_a_package_is_missing(lost: str, says: str, tmp_path: Path, inspect: Inspect) -> None:
    parts = fitting(tmp_path)
    del parts[lost]
    assert says in told(problems(inspect([*parts.values()]), CU128))


def test_a_version_that_another_package_does_not_want(tmp_path: Path, inspect: Inspect) -> None:
    parts = fitting(tmp_path) | {"xgrammar": wheels.module(tmp_path, "xgrammar", "0.1.10")}
    (found,) = problems(inspect([*parts.values()]), CU128)
    assert found.what == "`xgrammar` is 0.1.10, and ddtree-engine 0.1.0 asks for ==0.2.1"
    assert "put xgrammar==0.2.1 into the wheelhouse" in found.hint


def test_a_module_for_another_python(tmp_path: Path, inspect: Inspect) -> None:
    found = inspect([*fitting(tmp_path).values()])
    (site,) = (tmp_path / "environment/lib").glob("python*/site-packages")
    library = (site / "fast_kernels/ops.so").read_bytes()
    (site / "fast_kernels/more.cpython-310-x86_64-linux-gnu.so").write_bytes(library)
    assert problems(found, CU128) == []
    again = inspect_again(tmp_path)
    assert "`fast_kernels/more` is compiled for cpython-310" in told(problems(again, CU128))


def inspect_again(folder: Path) -> Inspection:
    python = str(folder / "environment/bin/python")
    done = subprocess.run(
        inspection.argv(python, ENGINE),
        input=inspection.program(),
        capture_output=True,
        text=True,
        check=False,
    )
    return parse(done.stdout)


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        (Expected(ENGINE, build="cu130"), "is a build for CUDA 12.8, and cu130 was asked for"),
        (Expected(ENGINE, build="cpu"), "is a build for CUDA 12.8, and one for the CPU"),
        (Expected(ENGINE, torch="2.11.0"), "torch is 2.13.0+cu128, and 2.11.0 was asked for"),
        (Expected(ENGINE, capabilities=((6, 0),)), "no machine code for compute capability 6.0"),
        (Expected(BACKENDS["sglang"]), "`sglang` is not installed"),
    ],
)
def test_it_is_not_what_was_asked_for(
    expected: Expected, says: str, tmp_path: Path, inspect: Inspect
) -> None:
    assert says in told(problems(inspect([*fitting(tmp_path).values()]), expected))


def test_an_import_that_crashes_is_named(tmp_path: Path, inspect: Inspect) -> None:
    parts = fitting(tmp_path)
    crash = wheels.module(tmp_path, "soundfile", "0.13.1", "import os; os.abort()")
    found = inspect([*(parts | {"soundfile": crash}).values()])
    assert "the interpreter ends while it imports `soundfile`" in told(problems(found, CU128))
    assert found.torch is not None


def test_an_interpreter_that_says_nothing() -> None:
    assert problems(parse("Segmentation fault"), CU128)[0].what == (
        "the interpreter of the environment does not run"
    )


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        ("sm_90", (9, 0), True),
        ("sm_90a", (9, 0), True),
        ("sm_86", (8, 9), True),
        ("sm_89", (8, 6), False),
        ("sm_90", (12, 0), False),
        ("sm_120", (12, 1), True),
        ("sm_100", (10, 3), True),
        ("gfx942", (9, 4), False),
    ],
)
def test_machine_code_runs_within_a_major_version(
    architecture: str, capability: tuple[int, int], runs: bool
) -> None:
    assert runs_on((architecture,), capability) is runs

"""Whether one host's environment fits another: nothing speaks against it, or each thing by name."""

from dataclasses import replace
from typing import Any

import pytest

from ddtreectl.env.backends import BACKENDS
from ddtreectl.env.cuda import Accelerators
from ddtreectl.env.inspection import Distribution, Inspection, Library, Torch
from ddtreectl.env.takeover import Destination, Origin, mismatches
from ddtreectl.facts.python import Python

DEBIAN = Python((3, 11, 2), "cpython-311 linux-x86_64 glibc 2.36", True)
FOUND = Inspection(
    python=(3, 11, 9),
    tag="cpython-311",
    libc="glibc 2.38",
    machine="x86_64",
    distributions={"ddtree-engine": Distribution("0.1.0"), "torch": Distribution("2.11.0+cu128")},
    libraries=(Library("fast_kernels/ops.so", ("libcudart.so.12",), glibc=(2, 34)),),
    torch=Torch("2.11.0+cu128", "12.8", True, ("sm_90", "sm_120")),
    imports={"torch": None},
    complete=True,
)
CT129 = Origin("ct129", FOUND, BACKENDS["engine"], "cu128", "/var/lib/ddtree/environments", "e")
CT200 = Destination(
    name="ct200",
    python=DEBIAN,
    interpreter="/usr/bin/python3",
    host=Accelerators(needed=True, driver=(570, 86, 15), capabilities=((12, 0),)),
    environments="/var/lib/ddtree/environments",
    engine="e",
)


def test_what_fits_can_be_taken_over() -> None:
    assert mismatches(CT129, CT200) == []
    assert mismatches(CT129, replace(CT200, torch="2.11.0", cuda="cu128")) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"python": None}, "Python: `/usr/bin/python3`, which it runs on, is not on `ct200`"),
        ({"python": replace(DEBIAN, version=(3, 12, 1))}, "Python: it is for 3.11, and"),
        (
            {"python": replace(DEBIAN, abi="cpython-311 linux-aarch64 glibc 2.36")},
            "processor: it is for x86_64, and `ct200` is a aarch64",
        ),
        (
            {"python": replace(DEBIAN, abi="cpython-311 linux-x86_64 glibc 2.31")},
            "glibc: fast_kernels/ops.so needs 2.34, and `ct200` has 2.31",
        ),
        ({"torch": "2.13.0"}, "torch: it has 2.11.0+cu128, and 2.13.0 is wanted"),
        ({"cuda": "cu130"}, "CUDA: it is built for cu128, and cu130 is wanted"),
        ({"host": Accelerators(True, None, ((12, 0),))}, "driver: none is loaded on `ct200`"),
        (
            {"host": Accelerators(True, (510, 47, 3), ((9, 0),))},
            "cu128: it needs driver 525.60.13, the host has 510.47.03",
        ),
        (
            {"host": Accelerators(True, (570, 86, 15), ((8, 0),))},
            "architectures: torch has sm_90, sm_120, and the GPUs of `ct200` are 8.0",
        ),
        (
            {"host": Accelerators(True, (570, 86, 15), (None,))},
            "architectures: what GPUs `ct200` has is not known",
        ),
        ({"environments": "/srv/environments"}, "path: environments are in /var/lib/ddtree/"),
        ({"engine": "f"}, "engine: `ct129` has another one"),
    ],
)
def test_each_mismatch_is_named(change: dict[str, Any], says: str) -> None:
    (told,) = mismatches(CT129, replace(CT200, **change))
    assert told.startswith(says)


def test_all_mismatches_are_named_at_once() -> None:
    to = replace(CT200, python=None, torch="2.13.0", environments="/srv", engine="f")
    assert [line.partition(":")[0] for line in mismatches(CT129, to)] == [
        *("Python", "torch", "path", "engine"),
    ]


def test_an_environment_that_is_broken_at_home_is_not_taken_over() -> None:
    old = replace(FOUND.libraries[0], cxx11_abi=False)
    origin = replace(CT129, found=replace(FOUND, libraries=(old,)))
    (told,) = mismatches(origin, CT200)
    assert told.startswith("on `ct129` itself: `fast_kernels` was built for the old C++ ABI")


def test_a_build_for_the_cpu_does_not_serve_gpus() -> None:
    torch = Torch("2.11.0+cpu", None, True, ())
    library = Library("fast_kernels/ops.so", ())
    found = replace(FOUND, torch=torch, libraries=(library,))
    (told,) = mismatches(replace(CT129, found=found, build="cpu"), CT200)
    assert told == "CUDA: it is built for cpu, and services of `ct200` use GPUs"

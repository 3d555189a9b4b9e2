"""The choice of a CUDA build. A case is a file: a host, a wish, and what comes of it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ddtreectl.env.cuda import BUILDS, Accelerators, build_of, choose
from ddtreectl.errors import RefusedError

CASES = sorted((Path(__file__).parent / "cuda").glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case: dict[str, Any] = YAML(typ="safe").load(path.read_text())
    host = Accelerators(
        needed=case.get("needed", True),
        driver=tuple(case["driver"]) if case.get("driver") else None,
        capabilities=tuple(c and (c[0], c[1]) for c in case.get("capabilities", [])),
    )
    arguments = (host, case.get("wanted", "auto"), case.get("available"))
    if "build" in case:
        choice = choose(*arguments)
        assert choice.build == case["build"]
        assert case.get("reason", "") in choice.reason
        return
    with pytest.raises(RefusedError) as refused:
        choose(*arguments)
    assert case["says"] in f"{refused.value.message}\n{refused.value.cause}"
    assert case.get("hint", "") in refused.value.hint


@given(
    driver=st.tuples(st.integers(400, 700), st.integers(0, 99), st.integers(0, 99)),
    capabilities=st.lists(st.tuples(st.integers(5, 13), st.integers(0, 9)), min_size=1, max_size=4),
)
def test_what_is_chosen_runs_and_nothing_newer_does(
    driver: tuple[int, int, int], capabilities: list[tuple[int, int]]
) -> None:
    host = Accelerators(needed=True, driver=driver, capabilities=tuple(capabilities))
    try:
        build = build_of(choose(host).build)
    except RefusedError:
        return
    assert build is not None
    assert driver >= build.minimum
    assert all(build.runs_on(capability) for capability in capabilities)
    for newer in BUILDS[: BUILDS.index(build)]:
        assert driver < newer.native or not all(newer.runs_on(c) for c in capabilities)

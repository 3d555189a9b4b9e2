"""The documentation says what the code does, and its links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from ddtreectl.errors import ExitCode
from ddtreectl.plan.status import Health, HostStatus, ServiceStatus
from tools import cli_reference

REPOSITORY = Path(__file__).parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def pages() -> list[Path]:
    folders = ("docs", "engine", "tests", "bench")
    found = [*REPOSITORY.glob("*.md"), *(REPOSITORY / ".").glob("*/README.md")]
    for folder in folders:
        found += (REPOSITORY / folder).rglob("*.md")
    return sorted(set(found))


def anchors(page: Path) -> Iterator[str]:
    """What a heading is called in a link: lower case, spaces as hyphens, other signs left out."""
    for heading in HEADING.findall(page.read_text(encoding="utf-8")):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_command_reference_is_that_of_the_code() -> None:
    assert cli_reference.main(["--check"]) == 0


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link or link.startswith("mailto:"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


FAILURES = REPOSITORY / "docs/reference/failures.md"
SHOWN_BY = re.compile(r"\[(test_\w+)\]\(\.\./\.\./([\w/]+\.py)\)")


def test_every_failure_is_shown_by_tests_that_exist() -> None:
    rows = [
        line
        for line in FAILURES.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith(("| What", "| ---"))
    ]
    assert len(rows) > 28
    for row in rows:
        named = SHOWN_BY.findall(row)
        assert named, f"no test: {row}"
        assert row.count("](") == len(named)
        for name, file in named:
            text = (REPOSITORY / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{file} has no {name}"


def test_every_field_of_a_service_is_told() -> None:
    page = (REPOSITORY / "docs/reference/status.md").read_text(encoding="utf-8")
    for kind in (ServiceStatus, HostStatus):
        for field in fields(kind):
            assert f"`{field.name}`" in page, f"{kind.__name__}.{field.name} is not told"
    for health in get_args(Health):
        assert f"`{health}`" in page
    for code in ExitCode:
        assert f"| {int(code)} |" in page

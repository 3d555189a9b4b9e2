"""What compiled packages say, explained. A case is a file, and each row of the table has one."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ddtreectl.env.messages import KNOWN, explain

CASES = {path.stem: path for path in sorted((Path(__file__).parent / "messages").glob("*.yaml"))}


def test_each_row_of_the_table_has_a_case() -> None:
    assert sorted(CASES) == sorted(row.name for row in KNOWN)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = YAML(typ="safe").load(CASES[name].read_text())
    told = explain(case["said"])
    assert told is not None
    assert told.name == name
    assert case["cause"] in told.cause
    assert case["hint"] in told.hint


def test_a_message_that_nobody_knows_is_left_as_it_is() -> None:
    assert explain("ValueError: something of one's own") is None

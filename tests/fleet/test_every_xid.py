"""Every Xid of the table, in the kernel log of a real host, each of a GPU of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtreectl.gpu.xids import XIDS
from tests.fleet.lab.fleet import Fleet
from tests.fleet.operator import Operator


@pytest.fixture
def operator(fleet: Fleet, tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(fleet, tmp_path)
    operator.env["XDG_STATE_HOME"] = str(tmp_path / "state")
    yield operator
    operator.close()


def test_each_leads_to_what_the_table_says_once_and_again(fleet: Fleet, operator: Operator) -> None:
    host = fleet.hosts["h1"]
    expected = {}
    for number, row in sorted(XIDS.items()):
        repeats = row.repeats.verdict if row.repeats else row.verdict
        for domain, times, verdict in (("0001", 1, row.verdict), ("0002", 5, repeats)):
            address = f"{domain}:{number:02x}:00"
            for _ in range(times):
                host.log(f"NVRM: Xid (PCI:{address}): {number}, pid=1, name=init, said so")
            expected[address] = str(verdict)
    document = json.loads(operator.run("status", "h1", "--json").stdout)
    found = {gpu["pci"]: gpu["verdict"] for gpu in document["hosts"][0]["health"]["gpus"]}
    assert expected == {address: found.get(address) for address in expected}

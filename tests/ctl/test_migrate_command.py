"""`migrate` with words that mean nothing: said before any host is asked."""

from pathlib import Path

import pytest

from ddtreectl.cli.main import run

NOBODY_LISTENS = str(Path(__file__).parent / "data/nobody_listens.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ct129:7"], "no slot of `ct129` is what is asked for\nhint: the inventory has: gpu1"),
        (["ct129", "ct200:0"], "no slot of `ct200` is what is asked for"),
        (["ct129", "ct201"], "host `ct201` is not in the inventory"),
        (["ct129:GPU-1"], "a GPU is named by its index, as in `ct129:1`"),
        (["ct129", "--resume", "--undo"], "go in different directions"),
    ],
)
def test_a_slip_of_the_hand(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["--inventory", NOBODY_LISTENS, "migrate", *words, "--yes"]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert "look at every host" not in told.err

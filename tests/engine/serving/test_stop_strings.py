"""Text in pieces: the stop string's cut and the characters do not depend on where pieces end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from ddtree_engine.stop_strings import StopStrings
from ddtree_engine.text_stream import CONTEXT, WINDOW, Detokenizer, TextStream
from tests.engine.serving.checkpoint import EOS, build_tokenizer

TOKENIZER = build_tokenizer()
TOKENS = st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=60)
LETTERS = st.text("ab€", max_size=30)
STOPS = st.lists(st.text("ab€", min_size=1, max_size=5), max_size=4)


def decode(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids)))


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The specification: at the first end of a stop string, cut the longest that ends there."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def pieces_of(data: st.DataObject, length: int) -> list[slice]:
    edges = sorted(data.draw(st.sets(st.integers(0, length), max_size=8)) | {0, length})
    return [slice(a, b) for a, b in pairwise(edges)]


@given(LETTERS, STOPS, st.data())
def test_pieces_joined_are_the_text_before_the_stop_string(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    matcher = StopStrings(stops)
    given_out = "".join(matcher.feed(text[part]) for part in pieces_of(data, len(text)))
    wanted, stopped = cut(text, stops)
    assert wanted.startswith(given_out)
    assert matcher.stopped is stopped
    assert given_out + matcher.finish() == wanted


@pytest.mark.parametrize(
    ("pieces", "stops", "given_out", "rest"),
    [
        (["ab", "c"], ["bc"], ["a", ""], ""),
        (["x\n", "\ny"], ["\n\n"], ["x", ""], ""),
        (["ab", "d"], ["bc"], ["a", "bd"], ""),
        (["abab", "x"], ["ababc", "abx"], ["", "ab"], ""),
        (["ab"], ["bc"], ["a"], "b"),
        (["aab", "b"], ["b", "aabb"], ["aa", ""], ""),
    ],
)
def test_what_is_held_back(
    pieces: list[str], stops: list[str], given_out: list[str], rest: str
) -> None:
    matcher = StopStrings(stops)
    assert [matcher.feed(piece) for piece in pieces] == given_out
    assert matcher.finish() == rest


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


@given(TOKENS, st.data())
def test_pieces_joined_are_the_text_of_all_tokens(tokens: list[int], data: st.DataObject) -> None:
    stream = Detokenizer(decode)
    pieces = [stream.feed(tokens[part]) for part in pieces_of(data, len(tokens))]
    assert "".join(pieces) + stream.finish() == decode(tokens)


@given(st.text(max_size=20))
def test_no_piece_has_half_a_character(text: str) -> None:
    stream = Detokenizer(decode)
    pieces = [stream.feed([token]) for token in TOKENIZER.encode(text).ids]
    assert "".join(pieces) + stream.finish() == text


@pytest.mark.parametrize("broken", ["é", "€", "🙂"])
def test_a_character_that_stays_incomplete_is_shown_at_the_end(broken: str) -> None:
    ids = byte_tokens(broken)[:-1]
    stream = Detokenizer(decode)
    assert [stream.feed([token]) for token in ids] == [""] * len(ids)
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def byte_tokens(character: str) -> list[int]:
    """Tokens of the single bytes of a character."""
    letters = ByteLevel(add_prefix_space=False).pre_tokenize_str(character)[0][0]
    vocabulary = TOKENIZER.get_vocab(with_added_tokens=False)
    return [vocabulary[letter] for letter in letters]


@pytest.mark.parametrize("special", [0, 1, 7])
def test_a_long_text_keeps_a_short_window(special: int) -> None:
    """Of broken bytes, or of tokens without text, as after `ignore_eos`."""
    longest = 0

    def measured(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    ids = [byte_tokens("€")[0], *[TOKENIZER.token_to_id(EOS)] * special] * 60
    stream = Detokenizer(measured)
    text = "".join(stream.feed([token]) for token in ids) + stream.finish()
    assert text == decode(ids) == "\N{REPLACEMENT CHARACTER}" * 60
    assert longest < 30


def test_tokens_without_text_inside_a_character() -> None:
    head, *tail = byte_tokens("€")
    special = TOKENIZER.token_to_id(EOS)
    assert special is not None
    before = WINDOW - CONTEXT
    ids = [*byte_tokens("a") * before, head, *[special] * CONTEXT, *tail]
    stream = Detokenizer(decode)
    pieces = [stream.feed([token]) for token in ids]
    assert "".join(pieces) + stream.finish() == decode(ids) == "a" * before + "€"


@given(TOKENS, STOPS, st.data())
def test_stop_strings_over_tokens(tokens: list[int], stops: list[str], data: st.DataObject) -> None:
    one_by_one, in_rounds = TextStream(decode, stops), TextStream(decode, stops)
    texts = []
    for stream, parts in (
        (one_by_one, [slice(i, i + 1) for i in range(len(tokens))]),
        (in_rounds, pieces_of(data, len(tokens))),
    ):
        pieces = [stream.feed(tokens[part]) for part in parts]
        texts.append("".join(pieces) + stream.finish())
    assert texts == [cut(decode(tokens), stops)[0]] * 2
    assert one_by_one.consumed == in_rounds.consumed

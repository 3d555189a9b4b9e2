"""The ancestors of a tile's nodes as `tree_gdn` holds them: four words of 32 bits a row.

As a mask [ROWS, ROWS] in registers they would be a register an entry. As words they are four a row,
and an entry is a test of a bit where it is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ddtree_engine.ops.ancestor_bits import naive

WORDS: tl.constexpr = tl.constexpr(naive.WORDS)


@triton.jit
def _load_word(bits, row, nodes, TILE: tl.constexpr, ROWS: tl.constexpr, WORD: tl.constexpr):
    """32 of the nodes of a tile, from the WORD-th 32 on: which of them node `row[i]` sees."""
    FIRST: tl.constexpr = TILE * ROWS + 32 * (WORD % max(1, ROWS // 32))
    return tl.load(bits + row * WORDS + FIRST // 32, mask=row < nodes, other=0) >> (FIRST % 32)


@triton.jit
def load_words(bits, row, nodes, TILE: tl.constexpr, ROWS: tl.constexpr):
    """Which nodes of a tile node `row[i]` sees: four words [ROWS] of `ancestor_bits`.

    A tile of fewer than 128 rows has its words repeated; one of 16, others' bits above its own.
    """
    return (
        _load_word(bits, row, nodes, TILE, ROWS, 0),
        _load_word(bits, row, nodes, TILE, ROWS, 1),
        _load_word(bits, row, nodes, TILE, ROWS, 2),
        _load_word(bits, row, nodes, TILE, ROWS, 3),
    )


@triton.jit
def sees(words, like, ROWS: tl.constexpr):
    """The words as a mask [ROWS, ROWS], laid out in registers as the tensor `like` is."""
    # The term is 0. It makes the compiler compute the mask where `like` is, which is a product:
    # elsewhere the mask, or what it is applied to, would be moved through shared memory and spill.
    column = tl.arange(0, ROWS)[None, :] + ((like.to(tl.int32, bitcast=True) & 1) >> 1)
    word = words[0][:, None]
    if ROWS >= 64:
        word = tl.where(column < 32, word, words[1][:, None])
    if ROWS == 128:
        word = tl.where(
            column < 64, word, tl.where(column < 96, words[2][:, None], words[3][:, None])
        )
    # Split so that a register's own columns need no shift by a variable.
    return ((word >> (column & 6)) & (1 << (column & 25))) != 0


@triton.jit
def _pack_word(broken, ROWS: tl.constexpr, WORD: tl.constexpr):
    index = tl.arange(0, ROWS)
    return tl.sum(tl.where(index // 32 == WORD, broken << (index % 32), 0), axis=0)


@triton.jit
def pack(broken, ROWS: tl.constexpr):
    """`broken` [ROWS] of 0 and 1 as bits: four numbers."""
    return (
        _pack_word(broken, ROWS, 0),
        _pack_word(broken, ROWS, 1),
        _pack_word(broken, ROWS, 2),
        _pack_word(broken, ROWS, 3),
    )


@triton.jit
def meet(words, lost):
    """Not 0 where a row sees one of the nodes `lost`."""
    return (words[0] & lost[0]) | (words[1] & lost[1]) | (words[2] & lost[2]) | (words[3] & lost[3])


@triton.jit
def without(words, lost, broken):
    """The words without the nodes `lost`, and empty in rows that are `broken` themselves."""
    sound = broken == 0
    return (
        tl.where(sound, words[0] & ~lost[0], 0),
        tl.where(sound, words[1] & ~lost[1], 0),
        tl.where(sound, words[2] & ~lost[2], 0),
        tl.where(sound, words[3] & ~lost[3], 0),
    )

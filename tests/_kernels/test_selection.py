"""Positions that a row attends to: how they are chosen, and attention over them alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.reference.kv import store
from oxillama.reference.rows import best
from oxillama.reference.selector import chosen_positions, position_scores
from tests.support.kernels import PRESENT, normal, on_targets, refuses, same_bits
from tests.support.paged_cache import Cache, attended, choose, rows, wanted
from tests.support.spread import few


def filled(
    target: str, n: int, width: int, kv_type: str, page_size: int, ahead: int = 0
) -> tuple[Any, np.ndarray]:
    """A batch of the last rows of one sequence, behind its first ``ahead``, and all keys."""
    keys = normal(n, width, seed=3)
    cache = Cache(target, (1, 1, width, 0), kv_type, page_size)
    for count in (ahead, n - ahead) if ahead else (n,):
        batch = cache.batch([(0, count)])
        first = cache.lengths[0] - count
        batch.store(0, keys[first : cache.lengths[0]], 0, 0, 2)
    return batch, keys


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize(("heads", "width", "page_size"), [(5, 24, 16), (67, 16, 64), (8, 32, 4)])
def test_the_highest_scores_are_chosen(kv_type: str, heads: int, width: int, page_size: int) -> None:
    n, most = 150, 37
    q, weights = normal(n, heads * width + 3, seed=1), normal(n, heads, seed=2)
    found = []
    for target in PRESENT:
        batch, keys = filled(target, n, width, kv_type, page_size)
        found.append(choose(batch, q, weights, most, n))
    stored = store(keys[:, None], keys[:, None], kv_type)
    scores = position_scores(q[:, : heads * width].reshape(n, heads, width), weights, stored)
    for row in range(n):
        stated = chosen_positions(scores[row, : row + 1], most)
        for chosen in found:
            assert chosen[row].tolist() == [*stated.tolist(), *[-1] * (most - len(stated))]


@on_targets
def test_bits_do_not_depend_on_chunks_or_memory(target: str) -> None:
    n, heads, width, most = 150, 9, 32, 20
    q, weights = normal(n, heads * width, seed=1), normal(n, heads, seed=2)
    first, _ = filled("portable", n, width, "f16", 16)
    whole = choose(first, q, weights, most, n, room=n)
    for page_size in (8, 64):
        batch, _ = filled(target, n, width, "f16", page_size, ahead=101)
        assert same_bits(choose(batch, q[101:], weights[101:], most, n, room=1), whole[101:])


@on_targets
def test_of_equal_scores_the_first_are_chosen(target: str) -> None:
    """Scores of negative weights, of 0 and -0, and of nothing but equal ones."""
    n, width = 80, 16
    keys = np.zeros((n, width), np.float32)
    keys[[5, 40, 70], 0] = 1
    keys[[9, 50], 0] = 2
    cache = Cache(target, (1, 1, width, 0))
    batch = cache.batch([(0, n)])
    batch.store(0, keys, 0, 0, 1)
    q = np.zeros((n, width), np.float32)
    q[:, 0] = 1

    def last(weight: float, most: int) -> list[int]:
        weights = np.full((n, 1), weight, np.float32)
        found: list[int] = choose(batch, q, weights, most, n)[-1].tolist()
        return found

    assert last(1.0, 2) == [9, 50]
    assert last(1.0, 4) == [5, 9, 40, 50]
    assert last(1.0, 7) == [0, 1, 5, 9, 40, 50, 70]
    assert last(0.0, 3) == last(-0.0, 3) == [0, 1, 2]
    assert last(-1.0, 75) == [i for i in range(n) if i not in (5, 9, 40, 50, 70)]
    assert last(-1.0, 77) == [i for i in range(n) if i not in (9, 50, 70)]
    assert last(np.nan, 3) == [0, 1, 2]
    assert last(np.inf, 3) == [5, 9, 40]  # 0 times infinity is no number


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("shape", [(1, 1, 72, 64), (2, 2, 24, 16)])
def test_attention_to_chosen_positions(kv_type: str, shape: tuple[int, int, int, int]) -> None:
    n, heads, most = 90, 4, 70
    qkv = rows(n, shape, heads)
    rng = np.random.default_rng(0)
    chosen = np.zeros((n, most), np.int32)
    stated = np.empty((n, heads * shape[3]), np.float32)
    for row in range(n):
        mine = np.sort(rng.permutation(row + 1)[:most]).astype(np.int32)
        chosen[row, : len(mine)] = mine
        _, kv_heads, key_dim, value_dim = shape
        q, k, v = np.split(qkv[[*mine, row]], np.cumsum([heads * key_dim, kv_heads * key_dim]), axis=1)
        k, v = k[:-1].reshape(-1, kv_heads, key_dim), v[:-1].reshape(-1, kv_heads, value_dim)
        stated[row] = attended(q[-1:].reshape(1, heads, key_dim), k, v, 0.25, kv_type).reshape(-1)
    for target, page_size in product(PRESENT, [4, 16, 64]):
        (found,) = Cache(target, shape, kv_type, page_size).run([(0, qkv)], heads, 0.25, 2, chosen=chosen)
        assert same_bits(found, stated), (target, page_size)


@pytest.mark.parametrize(
    ("target", "page_size"), few(product(PRESENT, [8, 16]), [(PRESENT[0], 8), (PRESENT[0], 16)])
)
def test_all_positions_chosen_are_all_positions(target: str, page_size: int) -> None:
    """The same bits as without a choice, over several partitions and on more threads than units."""
    n, shape, heads = 2100, (1, 1, 24, 16), 3
    qkv = rows(n, shape, heads)

    def last(**options: Any) -> np.ndarray:
        cache = Cache(target, shape, "f32", page_size, n_pages=n // page_size + 1)
        cache.run([(0, qkv[:-1])], heads, 0.3, 2)
        return cache.run([(0, qkv[-1:])], heads, 0.3, 3, **options)[0]

    whole = last()
    assert same_bits(last(chosen=np.arange(n, dtype=np.int32)[None]), whole)
    assert same_bits(whole, wanted(qkv, shape, heads, "f32", 0.3, n=1))
    assert not same_bits(last(chosen=np.arange(n - 1, dtype=np.int32)[None]), whole)


@on_targets
def test_choices_that_cannot_be_are_refused(target: str) -> None:
    attention = load(target).attention
    cache = Cache(target, (1, 1, 16, 16))
    batch = cache.batch([(0, 3)])
    q, out = normal(3, 16), np.zeros((3, 16), np.float32)
    scratch = np.zeros(batch.scratch_bytes(1), np.uint8)

    def attend(chosen: list[list[int]], **options: Any) -> None:
        found = np.array(chosen, np.int32)
        batch.attend(0, q, 1, 1.0, out, scratch, 1, chosen=found, **options)

    for chosen, text in (
        ([[0], [0]], "chosen: expected 3 rows, got 2"),
        ([[], [], []], "chosen: expected 1 to 2.*34 positions, got rows of 0"),
        ([[0], [-1], [0]], "chosen: expected ascending positions up to 1 in row 1, got -1 after -1"),
        ([[0], [2], [0]], "chosen: expected ascending positions up to 1 in row 1, got 2 after -1"),
        ([[0, 0], [0, 0], [0, 1]], "chosen: expected ascending positions up to 1 in row 1, got 0 after 0"),
    ):
        refuses(text, attend, chosen)
    batch.store(0, normal(3, 32), 0, 16, 1)
    attend([[0, -1], [0, 1], [1, 2]])  # a row reads as many as its position allows
    for option in ({"window": 4}, {"chunk": 4}, {"causal": False}, {"slopes": np.ones(1, np.float32)}):
        refuses("chosen: expected causal rows without", attend, [[0], [1], [2]], **option)
    weights, scores, room = normal(3, 1), np.zeros((1, 64), np.float32), np.zeros((3, 2), np.int32)
    for wrong, text in (
        ((q, 1, weights, np.zeros((1, 60), np.float32), room), "scores: expected rows, of a multiple of 64"),
        ((q, 1, weights, np.zeros((0, 64), np.float32), room), "scores: expected rows"),
        ((q, 2, weights, scores, room), "n_heads: expected 1 or more that fit rows of 16, got 2"),
        ((q, 1, weights, scores, room[:2]), "out: expected"),
        ((q, 1, weights, scores, room[:, :0]), "out: expected one position or more"),
        ((q, 1, weights[:2], scores, room), "weights: expected"),
    ):
        refuses(text, batch.choose, 0, *wrong, scratch, 1)
    two, bare = (Cache(target, (1, *sizes)).batch([(0, 3)]) for sizes in ((2, 16, 16), (1, 16, 0)))
    text = "choose: expected pages of one key head, got 2"
    refuses(text, two.choose, 0, q, 1, weights, scores, room, scratch, 1)
    text = "attend: expected pages with values, got keys alone"
    refuses(text, bare.attend, 0, q, 1, 1.0, np.zeros((3, 0), np.float32), scratch, 1)
    assert attention.KvShape(1, 1, 16, 0, 0, 0, 16).page_bytes == 16 * 16 * 4


# --- blocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f32", "q8_0"])
@pytest.mark.parametrize(("size", "most"), [(4, 5), (3, 20), (64, 1)])
def test_complete_blocks_are_chosen_by_their_last_positions(kv_type: str, size: int, most: int) -> None:
    n, heads, width = 210, 5, 24
    q, weights = normal(n, heads * width, seed=1), normal(n, heads, seed=2)
    for target in PRESENT:
        batch, keys = filled(target, n, width, kv_type, 16)
        found = choose(batch, q, weights, most, n, blocks=(size,))
        stored = store(keys[size - 1 :: size, None], keys[size - 1 :: size, None], kv_type)
        scores = position_scores(q.reshape(n, heads, width), weights, stored)
        for row in range(n):
            complete = (row + 1) // size
            stated = np.flatnonzero(best(scores[row, :complete], most)) if complete else np.zeros(0)
            assert found[row].tolist() == [*stated.tolist(), *[-1] * (most - len(stated))]


@pytest.mark.parametrize(("size", "most", "local"), [(4, 5, 1), (3, 20, 3), (5, 2, 0)])
def test_whole_blocks_are_chosen_by_their_highest_products(size: int, most: int, local: int) -> None:
    n, width = 140, 24
    q, ones = normal(n, width, seed=1), np.ones((n, 1), np.float32)
    for target in PRESENT:
        batch, keys = filled(target, n, width, "f16", 8)
        found = choose(batch, q, ones, most, n, blocks=(size, True, local))
        stored = store(keys[:, None], keys[:, None], "f16")
        products = stored.scores(q[:, None], np.arange(n), 1)[:, 0]
        for row in range(n):
            blocks = np.array_split(products[row, : row + 1], np.arange(size, row + 1, size))
            tops = np.array([block.max() for block in blocks], np.float32)
            tops[max(0, len(tops) - local) :] = np.inf if local else tops[len(tops) :]
            stated = np.flatnonzero(best(tops, most))
            assert found[row].tolist() == [*stated.tolist(), *[-1] * (most - len(stated))]


@pytest.mark.parametrize("page_size", [4, 16])
def test_lists_of_positions_in_any_order_and_of_two_layers(page_size: int) -> None:
    """A list's entries below 0 are positions of the next layer; sums run in the order of the list."""
    n, heads, shape, most = 40, 3, (2, 1, 24, 16), 30
    both, rng = rows(n, shape, heads), np.random.default_rng(0)
    other = rows(n, shape, heads, seed=5)
    chosen, counts = np.zeros((n, most), np.int32), np.zeros(n, np.int32)
    stated = np.empty((n, heads * 16), np.float32)
    for row in range(n):
        mine = rng.permutation(np.r_[np.arange(-1 - row, 0), np.arange(row + 1)])[:most].astype(np.int32)
        chosen[row, : len(mine)], counts[row] = mine, len(mine)
        parts = [(both if at >= 0 else other)[at if at >= 0 else -1 - at] for at in mine]
        k, v = np.split(np.stack(parts)[:, heads * 24 :], [24], axis=1)
        q = both[row : row + 1, : heads * 24].reshape(1, heads, 24)
        stated[row] = attended(q, k[:, None], v[:, None], 0.25).reshape(-1)
    for target in PRESENT:
        cache = Cache(target, shape, "f32", page_size)
        batch = cache.batch([(0, n)])
        for layer, x in enumerate((both, other)):
            batch.store(layer, x, heads * 24, heads * 24 + 24, 1)
        out, scratch = np.empty((n, heads * 16), np.float32), np.zeros(batch.scratch_bytes(2), np.uint8)
        batch.attend(0, both, heads, 0.25, out, scratch, 2, chosen=chosen, counts=counts)
        assert same_bits(out, stated), target
        given, how = (1, both, heads, 0.25, out, scratch, 2), {"chosen": chosen, "counts": counts}
        refuses("chosen: expected positions up to", batch.attend, *given, **how)

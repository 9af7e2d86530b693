"""The random numbers of engine `lanes`: the generator bit by bit, the normals' law, and independence between chains and steps."""

import math

import numpy as np
import pytest
from numba import njit
from scipy import stats

from gyromc.engines.lanes.functions import next_index, next_word, normal_pair, streams
from gyromc.engines.lanes.vectors import load, store
from support.generators import xoshiro

Z = 5.0  # about a hundred scores below


@njit
def _words(state, out):
    s = (load(state, 0), load(state, 16), load(state, 32), load(state, 48))
    for k in range(out.size // 16):
        s, word = next_word(s)
        store(out, 16 * k, word)


@njit
def _indices(state, out, count):
    s = (load(state, 0), load(state, 16), load(state, 32), load(state, 48))
    for k in range(out.size // 16):
        s, index = next_index(s, count)
        store(out, 16 * k, index)


@njit
def _normals(state, out):
    s = (load(state, 0), load(state, 16), load(state, 32), load(state, 48))
    for k in range(out.size // 32):
        s, a, b = normal_pair(s, out)
        store(out, 32 * k, a)
        store(out, 32 * k + 16, b)
    for j in range(4):
        store(state, 16 * j, s[j])


def _state(seed: int) -> np.ndarray:
    return np.ascontiguousarray(streams(seed, 16).T).ravel()


def normals(seed: int, count: int, dtype) -> np.ndarray:
    """count × 16: the normals of sixteen chains."""
    out = np.empty(count * 16, dtype)
    _normals(_state(seed), out)
    return out.reshape(count, 16)


def test_every_lane_is_xoshiro128():
    state, out = _state(9), np.empty(16 * 200, np.uint32)
    _words(state.copy(), out)
    for lane in range(16):
        assert out.reshape(200, 16)[:, lane].tolist() == xoshiro([int(x) for x in state.reshape(4, 16)[:, lane]], 200)


def test_streams_are_distinct_and_do_not_depend_on_their_number():
    many = streams(1, 100_000)
    assert len(np.unique(many, axis=0)) == 100_000
    assert np.array_equal(streams(1, 10), many[:10])
    assert not np.any(np.all(streams(2, 1000)[:, None] == many[None, :1000], axis=2))
    ones = np.unpackbits(many.view(np.uint8), axis=1).mean(axis=0)
    assert np.max(np.abs(ones - 0.5)) < Z * 0.5 / math.sqrt(100_000)  # every bit of the seeding is fair


def test_bits_are_fair_and_uncorrelated_between_chains_and_steps():
    out = np.empty(16 * 50_000, np.uint32)
    _words(_state(2), out)
    bits = np.unpackbits(out.reshape(-1, 16, 1).view(np.uint8), axis=2).astype(float) - 0.5  # steps × chains × 32
    n = bits.shape[0]
    assert np.max(np.abs(bits.mean(axis=0))) < Z * 0.5 / math.sqrt(n)
    flat = bits.reshape(n, -1)
    between = flat.T @ flat / n / 0.25 - np.eye(flat.shape[1])
    assert np.max(np.abs(between)) < 6 / math.sqrt(n)  # 131,000 pairs of bits of all chains
    for lag in (1, 2, 3, 7):
        after = np.einsum("nb,nb->b", flat[:-lag], flat[lag:]) / (n - lag) / 0.25
        assert np.max(np.abs(after)) < Z * 1.1 / math.sqrt(n)


@pytest.mark.parametrize("count", [3, 128, 202, 100_003])
def test_indices_are_uniform(count):
    out = np.empty(16 * 100_000, np.uint32)
    _indices(_state(5), out, count)
    assert out.max() < count
    seen = np.bincount(out, minlength=count)
    assert stats.chisquare(seen).pvalue > 1e-5


def _check_normals(x: np.ndarray) -> None:
    n = x.size
    flat = x.ravel()
    power = np.ones(n)
    moment = lambda p: 0.0 if p % 2 else math.prod(range(1, p, 2))
    for p in range(1, 9):
        power = power * flat
        score = (power.mean() - moment(p)) / math.sqrt((moment(2 * p) - moment(p) ** 2) / n)
        assert abs(score) < Z, (p, score)
    for edge in (1.0, 2.0, 3.0, 4.0, 4.5, 5.0):
        for tail in (flat > edge, flat < -edge):
            expected = n * stats.norm.sf(edge)
            assert abs(np.count_nonzero(tail) - expected) < Z * math.sqrt(expected) + 3, edge
    assert stats.kstest(flat, "norm").pvalue > 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normals_have_the_normal_law(dtype):
    _check_normals(normals(11, 125_000, dtype).astype(float))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_hundred_million_normals(dtype):
    x = normals(12, 6_250_000, dtype).astype(float)
    _check_normals(x)
    assert np.abs(x).max() > 5.2


def test_normals_are_independent_between_chains_steps_and_halves_of_a_pair():
    x = normals(13, 200_000, "float32").astype(float)
    n = len(x)
    for transform in (
        lambda v: v,
        lambda v: (v**2 - 1) / math.sqrt(2),
        lambda v: np.abs(v) * math.sqrt(1 / (1 - 2 / math.pi)),
    ):
        v = transform(x)
        v = v - v.mean()
        chains = v.T @ v / n
        np.fill_diagonal(chains, 0.0)
        assert np.max(np.abs(chains)) < Z / math.sqrt(n)
        for lag in (1, 2, 3, 4, 6, 8):
            assert np.max(np.abs(np.mean(v[:-lag] * v[lag:], axis=0))) < Z / math.sqrt(n)


def test_sums_over_many_chains_have_the_right_spread():
    """Chains that went together would make their mean vary more (or less) than 1/√R."""
    x = np.concatenate([normals(seed, 4000, "float32") for seed in range(40)], axis=1).astype(float)
    means = x.mean(axis=1) * math.sqrt(x.shape[1])
    assert abs(np.mean(means**2) - 1) < Z * math.sqrt(2 / len(means))

"""Lookup kernels: exactly the table, on every instruction set."""

import numpy as np
import oracle
import pytest
from guard import guarded

from quantkit import _kernels

# Around the steps of 32, 64 and 256 elements, and where AVX2 begins to prepare its rows.
LENGTHS = [0, 1, 2, 15, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 255, 256, 257, 300, 511, 512, 513, 1000]


@pytest.mark.parametrize("where", ["start", "end"])
def test_every_length_next_to_a_guard_page(isa, where):
    rng = np.random.default_rng(0)
    table = guarded(rng.permutation(256).astype(np.uint8), where)
    for n in LENGTHS:
        x = guarded(rng.integers(0, 256, n, np.uint8), where)
        y = guarded(np.zeros(n, np.uint8), where)
        assert _kernels.lookup(x, y, table)
        assert np.array_equal(y, oracle.lookup(x, table)), n
        assert _kernels.lookup(x, x, table)  # in place
        assert np.array_equal(x, y)


def test_every_code_in_every_lane(isa):
    rng = np.random.default_rng(1)
    every = np.arange(256, dtype=np.uint8)
    for table in (every[::-1].copy(), np.full(256, 255, np.uint8), rng.integers(0, 256, 256, np.uint8)):
        for shift in range(0, 256, 5):
            x = np.roll(every, shift)
            y = np.zeros(256, np.uint8)
            _kernels.lookup(x, y, table)
            assert np.array_equal(y, table[x])


def test_overlap_is_reported():
    x = np.arange(100, dtype=np.uint8)
    table = np.arange(256, dtype=np.uint8)
    assert not _kernels.lookup(x[:-1], x[1:], table)
    assert not _kernels.lookup(x, x[::-1], table)
    assert x.tolist() == list(range(100))

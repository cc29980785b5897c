"""The corrected reciprocal never changes a code: equal to the division around every half-integer."""

import numpy as np

from quantkit import ops


def test_around_every_half_integer(isa):
    halves = np.arange(300, dtype=np.float32) + np.float32(0.5)
    rng = np.random.default_rng(0)
    scales = rng.integers(0, 1 << 23, 4000).astype(np.uint32) | np.uint32(0x3F800000)
    scales[:3] = 0x3F800000, 0x3FFFFFFF, 0x3F800001
    offsets = np.arange(-2, 3, dtype=np.int32)[:, None]
    for scale in scales.view(np.float32):
        for exponent in (0, -90, 60):
            s = np.ldexp(scale, exponent)
            x = ((halves * s).view(np.int32) + offsets).view(np.float32)
            # Scales along a vector take the divide instruction.
            divided = ops.quantize_linear(x, np.full(300, s), 0, axis=1)
            assert np.array_equal(ops.quantize_linear(x, float(s)), divided)
            below = ops.quantize_linear(-x, np.full(300, s), 255, axis=1)
            assert np.array_equal(ops.quantize_linear(-x, float(s), 255), below)

"""Products of matrices: attention, Gemm and its factors, operands in every place, embeddings."""

import numpy as np

from corpus.builder import Builder, Built, entry, vector


@entry
def transformer():
    b = Builder(5)
    width, heads = 32, 4
    inputs = [vector("x", "n", "t", width)]

    def linear(x, cin, cout):
        bias = b.const((b.rng.normal(size=cout) * 0.1).astype(np.float32))
        return b.op("Add", b.op("MatMul", x, b.weight(cin, cout, scale=cin**-0.5)), bias)

    def split(x):
        shape = b.const(np.array([0, 0, heads, width // heads]))
        return b.op("Transpose", b.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def norm(x):
        ones = b.const(np.ones(width, np.float32))
        return b.op("LayerNormalization", x, ones, b.const(np.zeros(width, np.float32)))

    h = norm("x")
    q, k, v = (split(linear(h, width, width)) for _ in range(3))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = b.op("Softmax", b.op("Mul", scores, b.const(np.float32(8**-0.5))), axis=-1)
    mixed = b.op("Transpose", b.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    x = b.op("Add", "x", linear(b.op("Reshape", mixed, b.const(np.array([0, 0, width]))), width, width))
    h = b.op("Relu", linear(norm(x), width, 64))
    x = b.op("Add", x, linear(h, 64, width))
    return Built(b.model(x, inputs, opset=17), (2, 24, width), ("MatMulIntegerToFloat",))


@entry
def gemm_factors():
    b = Builder(6)
    x = b.op(
        "Gemm", "x", b.weight(12, 8), b.const(b.rng.normal(size=12).astype(np.float32)), transB=1, alpha=0.5, beta=3.0
    )
    x = b.op("Relu", x)
    x = b.op("Gemm", x, b.weight(12, 4), b.const(np.float32([[1.0]])), beta=2.0)
    return Built(b.model(x, [vector("x", "n", 8)]), (5, 8), ("QGemm",))


@entry
def tied_weights():
    b = Builder(8)
    w = b.weight(16, 16, scale=0.25)
    bias = b.const(b.rng.normal(size=16).astype(np.float32))
    x = b.op("Relu", b.op("Add", b.op("MatMul", "x", w), bias))
    return Built(b.model(b.op("MatMul", x, w), [vector("x", "n", 16)]), (6, 16))


@entry
def constant_left_operand():
    b = Builder(14)
    x = b.op("MatMul", b.weight(6, 8, scale=0.3), "x")
    return Built(b.model(x, [vector("x", "n", 8, 5)]), (2, 8, 5))


@entry
def stacked_matrices():
    b = Builder(15)
    x = b.op("MatMul", "x", b.weight(3, 8, 6, scale=0.3))
    return Built(b.model(x, [vector("x", 3, "m", 8)]), (3, 5, 8))


@entry
def embedding():
    b = Builder(26)
    table = b.rng.normal(size=(300, 32)).astype(np.float32) * b.rng.uniform(0.1, 3, size=(1, 32)).astype(np.float32)
    x = b.op("Gather", b.const(table, "w"), b.op("Cast", b.op("Abs", b.op("Mul", "x", b.const(np.float32(50)))), to=7))
    return Built(b.model(b.op("MatMul", x, b.weight(32, 16, scale=0.2)), [vector("x", "n", "t")]), (3, 7))


@entry
def attention_from_one_product():
    """Query, key and value from one product, as vision transformers have them: the value is codes with a zero point."""
    b = Builder(33)
    width, heads, tokens = 64, 2, 49
    qkv = b.op("MatMul", "x", b.weight(width, 3 * width, scale=width**-0.5))
    qkv = b.op("Add", qkv, b.const((b.rng.normal(size=3 * width) * 0.3 + 0.5).astype(np.float32)))
    qkv = b.op("Reshape", qkv, b.const(np.array([0, tokens, 3, heads, width // heads])))
    parts = b.op("Split", b.op("Transpose", qkv, perm=[2, 0, 3, 1, 4]), outputs=3, axis=0)
    q, k, v = (b.op("Squeeze", part, b.const(np.array([0]))) for part in parts)
    scores = b.op("MatMul", b.op("Mul", q, b.const(np.float32(0.25))), b.op("Transpose", k, perm=[0, 1, 3, 2]))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    mixed = b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), b.const(np.array([0, tokens, width])))
    y = b.op("Add", b.op("MatMul", mixed, b.weight(width, width, scale=width**-0.5)), "x")
    return Built(b.model(y, [vector("x", "n", tokens, width)], opset=14), (2, tokens, width))

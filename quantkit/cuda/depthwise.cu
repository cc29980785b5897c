// ---- depthwise -----------------------------------------------------------------------------------------------------

// Each output n reads the one channel n / column_step of its window. b holds the codes b' tap after tap, outputs
// together. A thread makes W neighbours, W > 1 where each has a channel of its own.
template <int W> DEVICE void depthwise(const Product &g) {
    typedef Pack<u8, W> Codes;
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x, each = g.n / W, m = i / each, n = (i - m * each) * W;
    if (m >= g.m) return;
    const Row row = row_of<true>(g, m, 0);
    const int flip = (int)(g.flip & 0xff), a_zero = g.a_zero_value;
    int sum[W], b_zero[W];
    for (int j = 0; j < W; j++) sum[j] = 0, b_zero[j] = g.b_zero ? g.b_zero[n + j] : g.b_zero_value;
    const u8 *b = g.b + n;
    Tap tap;
    for (int z = 0; z < g.kernel[0]; z++)
        for (int y = 0; y < g.kernel[1]; y++)
            for (int x = 0; x < g.kernel[2]; x++, b += g.n) {
                tap.c = n / g.column_step;
                tap.at[0] = (int)(z * g.dilation[0]), tap.at[1] = (int)(y * g.dilation[1]), tap.at[2] = (int)(x * g.dilation[2]);
                const u8 *a = seen(g, row, tap);
                if (!a) continue;
                const Codes left = *(const Codes *)a, right = *(const Codes *)b;
#pragma unroll
                for (int j = 0; j < W; j++) sum[j] += ((left.v[j] ^ flip) - a_zero) * ((signed char)right.v[j] - b_zero[j]);
            }
    const i64 at = place(g, m, 0);
    for (int j = 0; j < W; j++) {
        Column c = column_of(g, n + j, 0);
        c.zero = c.sum = 0;  // they are in the sum already
        put(g, at + (n + j) * g.y_column, finished(g, sum[j], m, at + (n + j) * g.y_column, 0, c));
    }
}

KERNEL(depthwise1, Product, 256, 4) { depthwise<1>(g); }
KERNEL(depthwise4, Product, 256, 4) { depthwise<4>(g); }

// Products of codes: what they are, what becomes of a sum, and where the rows of a lie.
//
// y[m, n] = sum over k of (a[m, k] - a_zero[m]) * (b[k, n] - b_zero[n])                                            (1)
//
// The tensor cores multiply unsigned by signed bytes and know no zero points. With a' = a (+ 128 where a is signed), b' =
// b (- 128 where b is unsigned) and the zero points moved along,
//
// y = sum a' b'  - a_zero[m] * column_sum[n]  - b_zero[n] * (row_sum[m] - K * a_zero[m])                           (2)
//
// with the sums of a' and b' over k. All of it wraps in int32, so (2) equals (1) modulo 2^32.
//
// b is packed: row n holds the b' of one output, k after k, padded with zeros to a multiple of 16 bytes. Whatever stands
// in a beyond K meets these zeros. A convolution is the same product; its rows of a are windows of the image, tap after
// tap, channels last, and what lies outside of the image reads as `outside`, 16 bytes of the zero point.

struct Product {
    const u8 *a;
    const u8 *b;
    void *y;
    const u8 *outside;
    i64 m, n, k, b_pitch;           // b_pitch: bytes of a packed row
    i64 a_stride;                   // bytes from row to row (not of windows)
    i64 a_step, b_step, y_step;     // to the next product of a batch, or the next group: bytes, bytes, elements
    i64 column_step;                // to the parameters of the next group's columns
    i64 y_rows, y_image, y_row, y_column;  // row m of y begins at element m / y_rows * y_image + m % y_rows * y_row
    // windows: depth, height, width
    i64 channels;                   // of a group, which are bytes of a tap
    i64 size[3], out[3], kernel[3], stride[3], dilation[3], pad[3], a_image, a_pixel[3];
    // what becomes of a sum
    const int *column_sum, *row_sum;  // of (2), or NULL
    const int *a_zero, *b_zero;       // one a row, one a column; NULL for the values below
    const int *bias;                  // one a column, or NULL
    const float *scale, *bias_f;      // one a column: multiplier, and an addend of a float32 result
    const u8 *table;                  // 256 codes that replace the result's, or NULL
    const u8 *residual;               // codes to add after requantizing, laid out as y; or NULL
    u32 flip;                         // 0x80808080 where a is signed
    int a_zero_value, b_zero_value;
    int kind;                         // of y: 0 int32, 1 codes, 2 float32
    int zero, low, high;              // of the codes
    int own_zero, residual_zero, residual_signed, y_signed;
    float own_ratio, residual_ratio;
};

struct Column {
    i64 n;
    u32 zero, sum, bias;
    float scale, bias_f;
};

DEVICE Column column_of(const Product &g, i64 n, i64 group) {
    const i64 at = n + group * g.column_step;
    Column c = {n, 0, 0, 0, 1, 0};
    if (n >= g.n) return c;
    c.zero = (u32)(g.b_zero ? g.b_zero[at] : g.b_zero_value);
    c.sum = g.column_sum ? (u32)g.column_sum[at] : 0;
    c.bias = g.bias ? (u32)g.bias[at] : 0;
    c.scale = g.scale ? g.scale[at] : 1;
    c.bias_f = g.bias_f ? g.bias_f[at] : 0;
    return c;
}

DEVICE i64 place(const Product &g, i64 m, i64 group) {
    const i64 image = m / g.y_rows;
    return group * g.y_step + image * g.y_image + (m - image * g.y_rows) * g.y_row;
}

// The terms of (2) but the first.
DEVICE int corrected(const Product &g, int sum, i64 m, i64 group, const Column &c) {
    const u32 a_zero = (u32)(g.a_zero ? g.a_zero[m] : g.a_zero_value);
    const u32 rest = g.row_sum ? (u32)g.row_sum[group * g.m + m] - (u32)g.k * a_zero : 0;
    return (int)((u32)sum - a_zero * c.sum - c.zero * rest + c.bias);
}

DEVICE u8 requantized(const Product &g, int sum, i64 at, const Column &c) {
    const float scaled = times(__int2float_rn(sum), c.scale);
    int q;
    if (!g.residual) {
        q = (int)between(round_even(scaled), (float)(g.low - g.zero), (float)(g.high - g.zero)) + g.zero;
    } else {
        const int bottom = g.y_signed ? -128 : 0, top = bottom + 255;
        q = (int)between(round_even(scaled), (float)(bottom - g.own_zero), (float)(top - g.own_zero)) + g.own_zero;
        const int other = g.residual_signed ? (signed char)g.residual[at] : g.residual[at];
        const float both = plus(times(g.own_ratio, (float)(q - g.own_zero)), times(g.residual_ratio, (float)(other - g.residual_zero)));
        q = (int)between(round_even(both), (float)(g.low - g.zero), (float)(g.high - g.zero)) + g.zero;
    }
    return g.table ? g.table[(u8)q] : (u8)q;
}

// What becomes of a sum, as bits of y.
DEVICE u32 finished(const Product &g, int sum, i64 m, i64 at, i64 group, const Column &c) {
    const int v = corrected(g, sum, m, group, c);
    if (g.kind == 0) return (u32)v;
    if (g.kind == 1) return requantized(g, v, at, c);
    const float scaled = times(__int2float_rn(v), c.scale);
    return __float_as_uint(g.bias_f ? plus(scaled, c.bias_f) : scaled);
}

DEVICE void put(const Product &g, i64 at, u32 bits) {
    if (g.kind == 1) ((u8 *)g.y)[at] = (u8)bits;
    else ((u32 *)g.y)[at] = bits;
}

// ---- rows of a -----------------------------------------------------------------------------------------------------

struct Row {
    i64 base;   // byte of a where it begins; -1 beyond the last row
    i64 y;      // element of y where it ends up
    int at[3];  // of a window: its first pixel, which may lie outside
};

template <bool WINDOWS> DEVICE Row row_of(const Product &g, i64 m, i64 group) {
    Row row = {-1, 0, {0, 0, 0}};
    if (m >= g.m) return row;
    row.y = place(g, m, group);
    if (!WINDOWS) {
        row.base = group * g.a_step + m * g.a_stride;
        return row;
    }
    i64 rest = m / g.out[2];
    row.at[2] = (int)((m - rest * g.out[2]) * g.stride[2] - g.pad[2]);
    const i64 image = rest / g.out[1];
    row.at[1] = (int)((rest - image * g.out[1]) * g.stride[1] - g.pad[1]);
    rest = image / g.out[0];
    row.at[0] = (int)((image - rest * g.out[0]) * g.stride[0] - g.pad[0]);
    row.base = group * g.a_step + rest * g.a_image;
    return row;
}

struct Tap {
    i64 c;  // channel within the tap
    int at[3];
};

DEVICE Tap tap_of(const Product &g, i64 k) {
    Tap tap;
    const u32 t = (u32)k / (u32)g.channels, line = t / (u32)g.kernel[2], plane = line / (u32)g.kernel[1];
    tap.c = (u32)k - t * (u32)g.channels;
    tap.at[2] = (int)((t - line * (u32)g.kernel[2]) * g.dilation[2]);
    tap.at[1] = (int)((line - plane * (u32)g.kernel[1]) * g.dilation[1]);
    tap.at[0] = (int)(plane * g.dilation[0]);
    return tap;
}

// Where the bytes of a tap lie, or NULL outside of the image.
DEVICE const u8 *seen(const Product &g, const Row &row, const Tap &tap) {
    const int z = row.at[0] + tap.at[0], y = row.at[1] + tap.at[1], x = row.at[2] + tap.at[2];
    if (row.base < 0 || (u32)z >= (u32)g.size[0] || (u32)y >= (u32)g.size[1] || (u32)x >= (u32)g.size[2]) return 0;
    return g.a + row.base + z * g.a_pixel[0] + y * g.a_pixel[1] + x * g.a_pixel[2] + tap.c;
}

template <bool WINDOWS> DEVICE u8 code_at(const Product &g, const Row &row, i64 k) {
    if (row.base < 0 || k >= g.k) return 0;
    if (!WINDOWS) return g.a[row.base + k];
    const u8 *p = seen(g, row, tap_of(g, k));
    return p ? *p : *g.outside;
}

template <bool WINDOWS> DEVICE bool in_pieces_of_16(const Product &g) {
    if (!WINDOWS) return (((u64)g.a | g.a_stride | g.a_step) & 15) == 0;
    return (((u64)g.a | g.channels | g.a_step | g.a_image | g.a_pixel[0] | g.a_pixel[1] | g.a_pixel[2]) & 15) == 0;
}

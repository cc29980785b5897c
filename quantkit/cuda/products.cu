// Second part: products of codes, as the end of kernels.cu.
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

// ---- the product ---------------------------------------------------------------------------------------------------

// A block of four warps makes 128 x 128 of y, a warp 64 x 64. Three pieces of 64 bytes of k are on their way in shared
// memory: 128 rows of a, 128 of b. Within a row of four times 16 bytes, those 16 are exchanged so that eight rows of one
// column lie in eight different banks.
#define TILE 128
#define DEPTH 64
#define STAGES 3
#define STAGE_BYTES (2 * TILE * DEPTH)
#define PITCH 66  // of laid out sums; even, and no multiple of the banks

DEVICE u32 spot(int row, int piece) { return row * DEPTH + ((piece ^ (row >> 1 & 3)) << 4); }

#if !TENSOR_CORES
DEVICE void copy16_async(u8 *to, const u8 *from, u32 bytes) {
    if (bytes == 16) *(uint4 *)to = *(const uint4 *)from;
    else
        for (u32 i = 0; i < 16; i++) to[i] = i < bytes ? from[i] : 0;
}
DEVICE void copies_begun() {}
template <int N> DEVICE void copies_wait() {}
#endif

template <bool WINDOWS> DEVICE void load(const Product &g, u8 *stage, const Row *rows, i64 k_tile, i64 n0, i64 group, bool whole) {
    const int piece = threadIdx.x & 3, first = threadIdx.x >> 2;
    const i64 k = k_tile * DEPTH + piece * 16;
    Tap tap;
    if (WINDOWS && whole) tap = tap_of(g, k);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = first + 32 * i;
        const u8 *from = g.outside;
        i64 bytes = 16;
        if (whole) {
            if (WINDOWS) {
                const u8 *p = k < g.k ? seen(g, rows[r], tap) : 0;
                if (p) from = p;
            } else {
                bytes = rows[r].base < 0 || k >= g.k ? 0 : g.k - k < 16 ? g.k - k : 16;
                if (bytes) from = g.a + rows[r].base + k;
            }
            copy16_async(stage + spot(r, piece), from, (u32)bytes);
        }
        const bool there = n0 + r < g.n && k < g.b_pitch;
        from = there ? g.b + group * g.b_step + (n0 + r) * g.b_pitch + k : g.outside;
        copy16_async(stage + TILE * DEPTH + spot(r, piece), from, there ? 16 : 0);
    }
    if (whole) return;
#pragma unroll 1
    for (int j = 0; j < 16; j++) {  // byte after byte
        if (WINDOWS) tap = tap_of(g, k + j);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Row &row = rows[first + 32 * i];
            u8 code = 0;
            if (row.base >= 0 && k + j < g.k) {
                const u8 *p = WINDOWS ? seen(g, row, tap) : g.a + row.base + k + j;
                code = p ? *p : *g.outside;
            }
            stage[spot(first + 32 * i, piece) + j] = code;
        }
    }
}

// One warp's 64 x 64 over 64 bytes of k. A lane holds, of each 16 x 8, two neighbours in row lane / 4 and two 8 below.
DEVICE void accumulate(int (&sum)[4][8][4], const u8 *a, const u8 *b, u32 flip, int lane) {
#if TENSOR_CORES
#pragma unroll
    for (int half_of = 0; half_of < 2; half_of++) {
        u32 left[4][4], right[8][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_matrices(left[i], a + spot(i * 16 + (lane & 15), half_of * 2 + (lane >> 4)));
#pragma unroll
            for (int j = 0; j < 4; j++) left[i][j] ^= flip;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 four[4];
            load_matrices(four, b + spot(j * 16 + (lane & 7) + (lane >> 4) * 8, half_of * 2 + (lane >> 3 & 1)));
            right[2 * j][0] = four[0], right[2 * j][1] = four[1], right[2 * j + 1][0] = four[2], right[2 * j + 1][1] = four[3];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) multiply(sum[i][j], left[i], right[j]);
    }
#else
    for (int word = 0; word < DEPTH / 4; word++) {
        u32 left[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                left[i][h] = *(const u32 *)(a + spot(i * 16 + h * 8 + (lane >> 2), word >> 2) + (word & 3) * 4) ^ flip;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const u32 right = *(const u32 *)(b + spot(j * 8 + (lane & 3) * 2 + e, word >> 2) + (word & 3) * 4);
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++) sum[i][j][h * 2 + e] = dot4(left[i][h], right, sum[i][j][h * 2 + e]);
            }
    }
#endif
}

template <bool WINDOWS> DEVICE void product(const Product &g) {
    DYNAMIC_SHARED(shared);
    Row *rows = (Row *)(shared + STAGES * STAGE_BYTES);
    const int t = threadIdx.x, lane = t & 31, warp_m = (t >> 5 & 1) * 64, warp_n = (t >> 6) * 64;
    const i64 m0 = (i64)blockIdx.x * TILE, n0 = (i64)blockIdx.y * TILE, group = blockIdx.z;
    const i64 tiles = (g.k + DEPTH - 1) / DEPTH;
    const bool whole = in_pieces_of_16<WINDOWS>(g);
    int sum[4][8][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
    rows[t] = row_of<WINDOWS>(g, m0 + t, group);
    __syncthreads();
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < tiles) load<WINDOWS>(g, shared + s * STAGE_BYTES, rows, s, n0, group, whole);
        copies_begun();
    }
    int stage = 0;
    for (i64 tile = 0; tile < tiles; tile++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        const int free_stage = stage ? stage - 1 : STAGES - 1;
        if (tile + STAGES - 1 < tiles) load<WINDOWS>(g, shared + free_stage * STAGE_BYTES, rows, tile + STAGES - 1, n0, group, whole);
        copies_begun();
        const u8 *at = shared + stage * STAGE_BYTES;
        accumulate(sum, at + warp_m * DEPTH, at + TILE * DEPTH + warp_n * DEPTH, g.flip, lane);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    copies_wait<0>();
    __syncthreads();
    // A warp lays 16 rows of 64 sums side by side, and a lane takes two columns of them: neighbours leave together.
    u32 *own = (u32 *)shared + (t >> 5) * 16 * PITCH;
    const i64 n = n0 + warp_n + lane * 2;
    const Column left = column_of(g, n, group), right = column_of(g, n + 1, group);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                own[((lane >> 2) + (e & 2) * 4) * PITCH + j * 8 + (lane & 3) * 2 + (e & 1)] = (u32)sum[i][j][e];
        __syncwarp();
#pragma unroll 1
        for (int r = 0; r < 16; r++) {
            const int in_tile = warp_m + i * 16 + r;
            const i64 m = m0 + in_tile, at = rows[in_tile].y + n * g.y_column;
            if (m >= g.m || n >= g.n) break;
            const u32 bits = finished(g, (int)own[r * PITCH + lane * 2], m, at, group, left);
            if (n + 1 == g.n) {
                put(g, at, bits);
                continue;
            }
            const u32 next = finished(g, (int)own[r * PITCH + lane * 2 + 1], m, at + g.y_column, group, right);
            if (g.y_column != 1 || ((u64)g.y + (g.kind == 1 ? at : at * 4)) % (g.kind == 1 ? 2 : 8)) {
                put(g, at, bits);
                put(g, at + g.y_column, next);
            } else if (g.kind == 1) {
                *(u16 *)((u8 *)g.y + at) = (u16)(bits | next << 8);
            } else {
                *(uint2 *)((u32 *)g.y + at) = make_uint2(bits, next);
            }
        }
        __syncwarp();
    }
}

KERNEL(product_rows, Product, 128, 2) { product<false>(g); }
KERNEL(product_windows, Product, 128, 2) { product<true>(g); }

// Sums of a' over each row, or window, for the zero points of b; of b' for those of a. A warp each.
struct RowSums {
    Product of;
    int *sums;
    int flip, addend;
};

template <bool WINDOWS> DEVICE void row_sums(const RowSums &g) {
    __shared__ u32 part[128];
    const int t = threadIdx.x, lane = t & 31;
    const i64 m = (i64)blockIdx.x * 4 + (t >> 5), group = blockIdx.z;
    const Row row = row_of<WINDOWS>(g.of, m, group);
    u32 sum = 0;
    if (m < g.of.m)
        for (i64 k = lane; k < g.of.k; k += 32) sum += code_at<WINDOWS>(g.of, row, k) ^ g.flip;
    part[t] = sum;
    __syncthreads();
    if (lane || m >= g.of.m) return;
    for (int l = 1; l < 32; l++) sum += part[t + l];
    g.sums[group * g.of.m + m] = (int)(sum + (u32)g.addend);
}

KERNEL(row_sums, RowSums, 128, 4) { row_sums<false>(g); }
KERNEL(window_sums, RowSums, 128, 4) { row_sums<true>(g); }

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

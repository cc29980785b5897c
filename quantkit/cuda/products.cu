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

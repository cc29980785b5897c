// What quantkit runs on a GPU, first part: arithmetic, and one element after another. products.cu, which is compiled as
// the end of this file, has the products. Header-free, so that NVRTC alone compiles it; every kernel takes one
// struct by value.
//
// The numbers are those of docs/numerics.md, bit for bit: divisions and products are rounded one by one (the _rn
// functions; nothing is fused), integers wrap. The file also compiles as host C++, where tests/cuda/on_cpu.h stands in
// for the hardware: the functions between the two lines of == are all that differs.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// ====================================================================================================================
#ifndef ON_CPU
#define DEVICE __device__ __forceinline__
#define KERNEL(name, Args, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name(const Args g)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]

#if __CUDA_ARCH__ >= 800
#define TENSOR_CORES 1  // of bytes in tiles of 16 x 8 x 32, and copies to shared memory that nobody waits for
#else
#define TENSOR_CORES 0
#endif

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

#if TENSOR_CORES
// The first `bytes` of 16 from global to shared memory, zeros for the rest.
DEVICE void copy16_async(u8 *to, const u8 *from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copies_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all but the newest N groups of copies.
template <int N> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four matrices of 8 rows of 16 bytes; each lane names a row and gets four bytes of each matrix.
DEVICE void load_matrices(u32 (&r)[4], const u8 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
// c[16][8] += a[16][32] of u8 times b[32][8] of s8, in the registers of a warp.
DEVICE void multiply(int (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
// c + four products of a byte of a (u8) and one of b (s8).
DEVICE int dot4(u32 a, u32 b, int c) {
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
#endif
// ====================================================================================================================

DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
DEVICE double divide(double a, double b) { return __ddiv_rn(a, b); }
DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
DEVICE float plus(float a, float b) { return __fadd_rn(a, b); }
DEVICE double plus(double a, double b) { return __dadd_rn(a, b); }
DEVICE float round_even(float x) { return rintf(x); }
DEVICE double round_even(double x) { return rint(x); }
DEVICE float least(float a, float b) { return fminf(a, b); }  // of a NaN and a number: the number
DEVICE double least(double a, double b) { return fmin(a, b); }
DEVICE float most(float a, float b) { return fmaxf(a, b); }
DEVICE double most(double a, double b) { return fmax(a, b); }
template <class R> DEVICE R between(R x, R low, R high) { return least(most(x, low), high); }

// float16 and bfloat16 in integers and float32.
struct half { u16 bits; };
struct bfloat { u16 bits; };

DEVICE float real(float x) { return x; }
DEVICE double real(double x) { return x; }
DEVICE float real(bfloat x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE float real(half x) {
    const u32 sign = (u32)(x.bits & 0x8000) << 16, low = (u32)(x.bits & 0x7fff) << 13;
    const u32 bits = (x.bits & 0x7c00) == 0x7c00 ? low | 0x7f800000u : __float_as_uint(times(__uint_as_float(low), 0x1p112f));
    return __uint_as_float(bits | sign);
}
DEVICE void store(float *y, float x) { *y = x; }
DEVICE void store(double *y, double x) { *y = x; }
DEVICE void store(bfloat *y, float x) {
    const u32 bits = __float_as_uint(x);
    y->bits = (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
DEVICE void store(half *y, float x) {
    const u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u;
    u32 rest = bits & 0x7fffffffu;
    if (rest >= 0x47800000u) rest = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
    else if (rest < 0x38800000u) rest = __float_as_uint(plus(__uint_as_float(rest), 0.5f)) - 0x3f000000u;  // subnormal
    else rest = (rest + 0xc8000fffu + (rest >> 13 & 1)) >> 13;
    y->bits = (u16)(sign | rest);
}

// ---- one element after another ----------------------------------------------------------------------------------

template <class T, int W> struct alignas(sizeof(T) * W > 16 ? 16 : sizeof(T) * W) Pack { T v[W]; };

// The place of an element: its channel is i / inner % channels.
struct Place {
    i64 channel, left, inner, channels;  // left: elements of this channel from here on, before the next one begins
    DEVICE Place(i64 i, i64 inner, i64 channels) : channel(0), left(0), inner(inner), channels(channels) {
        if (channels == 1) return;
        const i64 run = i / inner;
        channel = run % channels, left = inner - (i - run * inner);
    }
    DEVICE void next() {
        if (channels == 1 || --left) return;
        channel = channel + 1 == channels ? 0 : channel + 1, left = inner;
    }
};

// y[i] = f(x[i], channel). A block does 4 * 256 * W elements, a thread four packs of W, read before any is written.
template <int W, class X, class Y, class F> DEVICE void map(const X *x, Y *y, i64 count, i64 inner, i64 channels, const F &f) {
    typedef Pack<X, W> In;
    typedef Pack<Y, W> Out;
    const i64 step = 256 * W, begin = (i64)blockIdx.x * 4 * step + (i64)threadIdx.x * W;
    const bool whole = (u64)x % alignof(In) == 0 && (u64)y % alignof(Out) == 0;
    if (whole && begin + 3 * step + W <= count) {
        In in[4];
#pragma unroll
        for (int s = 0; s < 4; s++) in[s] = *(const In *)(x + begin + s * step);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            Place at(begin + s * step, inner, channels);
            Out out;
#pragma unroll
            for (int j = 0; j < W; j++, at.next()) f(in[s].v[j], &out.v[j], at.channel);
            *(Out *)(y + begin + s * step) = out;
        }
        return;
    }
#pragma unroll 1
    for (int s = 0; s < 4; s++) {
        i64 i = begin + s * step;
        Place at(i, inner, channels);
#pragma unroll 1
        for (const i64 end = i + W < count ? i + W : count; i < end; i++, at.next()) f(x[i], &y[i], at.channel);
    }
}

struct Affine {
    const void *x;
    void *y;
    i64 count, channels, inner;
    const float *scale;          // one a channel; NULL for the value below
    const int *zero;
    const float *zero_f;  // in place of an integer zero point
    float scale_value, zero_f_value;
    int zero_value, float_zero, low, high;
};

struct Quantize {
    Affine g;
    template <class X> DEVICE void operator()(X x, u8 *y, i64 c) const {
        const auto value = real(x);
        typedef decltype(real(x)) R;
        const R q = divide(value, (R)(g.scale ? g.scale[c] : g.scale_value));
        if (g.float_zero) {
            const R zero = g.zero_f ? g.zero_f[c] : g.zero_f_value;
            *y = (u8)(int)between(round_even(plus(q, zero)), (R)g.low, (R)g.high);
        } else {
            const int zero = g.zero ? g.zero[c] : g.zero_value;
            *y = (u8)((int)between(round_even(q), (R)(g.low - zero), (R)(g.high - zero)) + zero);
        }
    }
};

struct Dequantize {
    Affine g;
    template <class R, class X, class Y> DEVICE void value(X x, Y *y, i64 c) const {
        const R scale = g.scale ? g.scale[c] : g.scale_value;
        const R off = g.float_zero ? plus((R)x, -(R)(g.zero_f ? g.zero_f[c] : g.zero_f_value))
                                   : (R)(int)((u32)(int)x - (u32)(g.zero ? g.zero[c] : g.zero_value));
        store(y, times(off, scale));
    }
    template <class X, class Y> DEVICE void operator()(X x, Y *y, i64 c) const { value<float>(x, y, c); }
    template <class X> DEVICE void operator()(X x, double *y, i64 c) const { value<double>(x, y, c); }
};

#define QUANTIZE(name, X, blocks) \
    KERNEL(quantize_##name, Affine, 256, blocks) { map<4>((const X *)g.x, (u8 *)g.y, g.count, g.inner, g.channels, Quantize{g}); }
QUANTIZE(float32, float, 4)
QUANTIZE(float16, half, 4)
QUANTIZE(bfloat16, bfloat, 4)
QUANTIZE(float64, double, 2)

#define DEQUANTIZE(from, X, to, Y) \
    KERNEL(dequantize_##from##_##to, Affine, 256, 4) { map<4>((const X *)g.x, (Y *)g.y, g.count, g.inner, g.channels, Dequantize{g}); }
#define DEQUANTIZE_TO(to, Y) \
    DEQUANTIZE(uint8, u8, to, Y) DEQUANTIZE(int8, signed char, to, Y) DEQUANTIZE(int32, int, to, Y)
DEQUANTIZE_TO(float32, float)
DEQUANTIZE_TO(float16, half)
DEQUANTIZE_TO(bfloat16, bfloat)
DEQUANTIZE_TO(float64, double)

struct Lookup {
    const void *x;
    void *y;
    i64 count, channels, inner;
    const u8 *tables;  // 256 bytes a channel
};

struct Entry {
    const u8 *tables;
    DEVICE void operator()(u8 x, u8 *y, i64 c) const { *y = tables[c * 256 + x]; }
};

KERNEL(lookup, Lookup, 256, 2) {
    __shared__ u8 table[256];
    const Entry entry = {g.channels == 1 ? table : g.tables};
    table[threadIdx.x] = g.tables[threadIdx.x];
    __syncthreads();
    map<16>((const u8 *)g.x, (u8 *)g.y, g.count, g.inner, g.channels, entry);
}

// Elements of 1, 2, 4 or 8 bytes between any two layouts of one shape; `flip` is added to single bytes bit by bit.
struct Copy {
    const u8 *x;
    u8 *y;
    i64 count, itemsize, ndim, flip;
    i64 shape[8], x_strides[8], y_strides[8];  // strides in bytes
};

KERNEL(copy, Copy, 256, 4) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= g.count) return;
    const u8 *x = g.x;
    u8 *y = g.y;
    for (int d = (int)g.ndim - 1; d >= 0; d--) {
        const i64 rest = i / g.shape[d], at = i - rest * g.shape[d];
        x += at * g.x_strides[d], y += at * g.y_strides[d], i = rest;
    }
    if (g.itemsize == 1) *y = (u8)(*x ^ g.flip);
    else if (g.itemsize == 2) *(u16 *)y = *(const u16 *)x;
    else if (g.itemsize == 4) *(u32 *)y = *(const u32 *)x;
    else *(u64 *)y = *(const u64 *)x;
}

// ---- what real values are like ----------------------------------------------------------------------------------

struct Ranges {
    const void *x;
    i64 outer, channels, inner;
    double *low, *high;  // of the finite values: one a block and channel, block after block
    i64 *nonfinite;
    float *scale;  // for dynamic_parameters, which makes them of channel 0
    int *zero;
    i64 blocks;
};

DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
DEVICE bool is_finite(double x) { return ((u64)__double_as_longlong(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }

template <class X, class R> DEVICE void ranges(const Ranges &g) {
    __shared__ R low[256], high[256];
    __shared__ u32 odd[256];
    const int t = threadIdx.x;
    const i64 c = blockIdx.y, count = g.outer * g.inner;
    const R infinity = (R)__uint_as_float(0x7f800000u);
    R least_yet = infinity, most_yet = -infinity;
    u32 odd_yet = 0;
    for (i64 i = (i64)blockIdx.x * 256 + t; i < count; i += (i64)gridDim.x * 256) {
        const R x = real(((const X *)g.x)[g.channels == 1 ? i : (i / g.inner * g.channels + c) * g.inner + i % g.inner]);
        if (is_finite(x)) least_yet = least(least_yet, x), most_yet = most(most_yet, x);
        else odd_yet++;
    }
    low[t] = least_yet, high[t] = most_yet, odd[t] = odd_yet;
    __syncthreads();
    for (int half_of = 128; half_of; half_of /= 2) {
        if (t < half_of) {
            low[t] = least(low[t], low[t + half_of]), high[t] = most(high[t], high[t + half_of]);
            odd[t] += odd[t + half_of];
        }
        __syncthreads();
    }
    if (t) return;
    const i64 at = (i64)blockIdx.x * g.channels + c;
    g.low[at] = low[0], g.high[at] = high[0], g.nonfinite[at] = odd[0];
}

KERNEL(ranges_float32, Ranges, 256, 4) { ranges<float, float>(g); }
KERNEL(ranges_float16, Ranges, 256, 4) { ranges<half, float>(g); }
KERNEL(ranges_bfloat16, Ranges, 256, 4) { ranges<bfloat, float>(g); }
KERNEL(ranges_float64, Ranges, 256, 4) { ranges<double, double>(g); }

// The scale and zero point that DynamicQuantizeLinear takes for a range: choose_qparams in quantkit/qparams.py.
KERNEL(dynamic_parameters, Ranges, 32, 1) {
    if (threadIdx.x) return;
    double least_of = 0, most_of = 0;  // widened to hold 0
    i64 odd = 0;
    for (i64 b = 0; b < g.blocks; b++) {
        least_of = least(least_of, g.low[b]), most_of = most(most_of, g.high[b]);
        odd += g.nonfinite[b];
    }
    const float largest = __uint_as_float(0x7f7fffffu), smallest = __uint_as_float(0x00800000u);
    const float lo = (float)most(least_of, -(double)largest), hi = (float)least(most_of, (double)largest);
    const float width = plus(hi, -lo);
    float scale = is_finite(width) ? divide(width, 255.0f) : plus(divide(hi, 255.0f), -divide(lo, 255.0f));
    if (lo == 0 && hi == 0) scale = 1;
    else scale = most(scale, smallest);
    const int zero = (int)between(round_even(plus(0.0f, -divide(lo, scale))), 0.0f, 255.0f);
    const float farthest = (float)(zero > 255 - zero ? zero : 255 - zero);
    if (!is_finite(times(scale, farthest))) scale = __uint_as_float(__float_as_uint(divide(largest, farthest)) - 1);
    *g.scale = scale, *g.zero = zero, *g.nonfinite = odd;
}

struct Histogram {
    const void *x;
    i64 count, bins;
    u64 *counts;
    float low, per_unit;
};

template <class X> DEVICE void histogram(const Histogram &g) {
    __shared__ u32 own[4096];
    const bool is_small = g.bins <= 4096;
    for (int b = threadIdx.x; is_small && b < g.bins; b += 256) own[b] = 0;
    __syncthreads();
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < g.count; i += (i64)gridDim.x * 256) {
        const float value = (float)real(((const X *)g.x)[i]);
        if (!is_finite(value)) continue;
        const float at = times(plus(value, -g.low), g.per_unit);
        const i64 bin = (i64)between(at, 0.0f, (float)(g.bins - 1));
        if (is_small) atomicAdd(&own[bin], 1u);
        else atomicAdd(&g.counts[bin], (u64)1);
    }
    __syncthreads();
    for (int b = threadIdx.x; is_small && b < g.bins; b += 256)
        if (own[b]) atomicAdd(&g.counts[b], (u64)own[b]);
}

KERNEL(histogram_float32, Histogram, 256, 4) { histogram<float>(g); }
KERNEL(histogram_float16, Histogram, 256, 4) { histogram<half>(g); }
KERNEL(histogram_bfloat16, Histogram, 256, 4) { histogram<bfloat>(g); }
KERNEL(histogram_float64, Histogram, 256, 4) { histogram<double>(g); }

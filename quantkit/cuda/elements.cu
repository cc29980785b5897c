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

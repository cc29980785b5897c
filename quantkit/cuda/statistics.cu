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

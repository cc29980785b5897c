// What quantkit runs on a GPU. The files that module.py lists are compiled as one, in that order; this first one has the
// arithmetic. Header-free, so that NVRTC alone compiles it; every kernel takes one struct by value.
//
// The numbers are those of docs/numerics.md, bit for bit: divisions and products are rounded one by one (the _rn
// functions; nothing is fused), integers wrap. The files also compile as host C++, where tests/cuda/on_cpu.h stands in
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

/* What one core of an AVX-512 VNNI machine can do at most. */
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512vnni")))

/* `steps` times 12 products of 64 bytes, independent and with nothing loaded in the loop. */
TARGET int peak_multiply_add(long steps) {
    __m512i acc[12], a = _mm512_set1_epi32(0x01020304), b = _mm512_set1_epi32(0x04030201);
    _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) acc[i] = _mm512_set1_epi32(i);
    for (long s = 0; s < steps; s++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    _Pragma("GCC unroll 12") for (int i = 1; i < 12; i++) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    return _mm512_reduce_add_epi32(acc[0]);
}

/* Read `bytes` (a multiple of 512) once. */
TARGET int peak_read(const char *from, long bytes) {
    __m512i acc[8];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) acc[i] = _mm512_setzero_si512();
    for (long at = 0; at < bytes; at += 512)
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
            acc[i] = _mm512_xor_si512(acc[i], _mm512_loadu_si512(from + at + 64 * i));
    _Pragma("GCC unroll 8") for (int i = 1; i < 8; i++) acc[0] = _mm512_xor_si512(acc[0], acc[i]);
    return _mm512_reduce_add_epi32(acc[0]);
}

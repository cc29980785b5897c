/* The loss of codes, AVX2. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx2")))
#define WIDTH 8
#define LARGER(a, b) ((floats)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define WIDE_U8(p) ((ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define WIDE_S8(p) ((ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define EACH(f) f(0) f(1) f(2) f(3)
#include "error_lanes.h"

ERROR_KERNEL(qk_error_u8_avx2, uint8_t, u8)
ERROR_KERNEL(qk_error_s8_avx2, int8_t, s8)
#endif

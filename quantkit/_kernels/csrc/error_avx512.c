/* The loss of codes, AVX-512. */
#include "qk_isa.h"

#if QK_X86
#include <immintrin.h>

#include "qk_kernels.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define WIDTH 16
#define LARGER(a, b) ((floats)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define WIDE_U8(p) ((ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define WIDE_S8(p) ((ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define EACH(f) f(0) f(1)
#include "error_lanes.h"

ERROR_KERNEL(qk_error_u8_avx512, uint8_t, u8)
ERROR_KERNEL(qk_error_s8_avx512, int8_t, s8)
#endif

/* The 256-bit EVEX form: for CPUs that clock down under 512-bit vectors, and the test of the source it shares. */
#include "qk_isa.h"

#if QK_X86
#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define DPBUSD _mm256_dpbusd_epi32
#define FUNCTION void qk_matmul_u8s8_avx512vnni256
#include "matmul_ymm.h"
#endif

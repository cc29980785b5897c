/* Integer products on CPUs with AVX-VNNI and without AVX-512. */
#include "qk_isa.h"

#if QK_X86
#define TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))
#define DPBUSD _mm256_dpbusd_avx_epi32
#define FUNCTION void qk_matmul_u8s8_avxvnni
#include "matmul_ymm.h"
#endif

/* Integer products on CPUs with AVX-512 VNNI. */
#include "qk_isa.h"

#if QK_X86
#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define FUNCTION qk_matmul_u8s8_avx512vnni
#include "matmul_zmm_vnni.h"
#endif

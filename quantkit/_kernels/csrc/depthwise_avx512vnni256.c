/* Depthwise products in the 256-bit EVEX form. */
#include "qk_isa.h"

#if QK_X86
#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define DPBUSD _mm256_dpbusd_epi32
#define FUNCTION qk_depthwise_u8s8_avx512vnni256
#define FUNCTION3 qk_depthwise3x3_u8s8_avx512vnni256
#define FUNCTION5 qk_depthwise5x5_u8s8_avx512vnni256
#include "depthwise_ymm.h"
#include "depthwise_taps.h"
#include "depthwise3x3.h"
#include "depthwise5x5.h"
#endif

/* Depthwise products on CPUs with AVX-VNNI and without AVX-512. */
#include "qk_isa.h"

#if QK_X86
#define TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))
#define DPBUSD _mm256_dpbusd_avx_epi32
#define FUNCTION qk_depthwise_u8s8_avxvnni
#define FUNCTION3 qk_depthwise3x3_u8s8_avxvnni
#define FUNCTION5 qk_depthwise5x5_u8s8_avxvnni
#include "depthwise_ymm.h"
#include "depthwise_taps.h"
#include "depthwise3x3.h"
#include "depthwise5x5.h"
#endif

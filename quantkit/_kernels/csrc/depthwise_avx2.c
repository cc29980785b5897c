/* Depthwise products on CPUs without VNNI. */
#include "qk_isa.h"

#if QK_X86
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define FUNCTION qk_depthwise_u8s8_avx2
#include "depthwise_ymm.h"
#endif

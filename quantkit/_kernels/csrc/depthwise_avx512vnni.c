/* Depthwise products, 512-bit VNNI. */
#include "qk_isa.h"

#if QK_X86
#define FUNCTION qk_depthwise_u8s8_avx512vnni
#define FUNCTION3 qk_depthwise3x3_u8s8_avx512vnni
#define FUNCTION5 qk_depthwise5x5_u8s8_avx512vnni
#include "depthwise_zmm.h"
#include "depthwise_taps.h"
#include "depthwise3x3.h"
#include "depthwise5x5.h"
#endif

/* The loss of codes, portable: vectors of 4 as the compiler has them. */
#include "qk_kernels.h"

#define TARGET
#define WIDTH 4
#define LARGER(a, b) ((floats)(((ints)(a) & ((a) > (b))) | ((ints)(b) & ~((a) > (b)))))
#define WIDE_U8(p) ((ints){(p)[0], (p)[1], (p)[2], (p)[3]})
#define WIDE_S8 WIDE_U8
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#include "error_lanes.h"

ERROR_KERNEL(qk_error_u8_scalar, uint8_t, u8)
ERROR_KERNEL(qk_error_s8_scalar, int8_t, s8)

/* Steps of recurrent cells, AVX2. */
#include "qk_isa.h"

#if QK_X86
#define TARGET __attribute__((target("avx2,f16c")))
#define ISA avx2
#include "qk_cell.h"
#endif

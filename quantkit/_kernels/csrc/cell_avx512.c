/* Steps of recurrent cells, AVX-512. */
#include "qk_isa.h"

#if QK_X86
#if defined(__clang__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#endif
#define ISA avx512
#include "qk_cell.h"
#endif

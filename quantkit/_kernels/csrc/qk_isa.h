/* Instruction sets: which exist in this build, which this CPU has, which is in use. */
#ifndef QK_ISA_H
#define QK_ISA_H

#include <stdint.h>

/* Ordered by rank: where several kernels could serve a slot, the highest rank wins. */
typedef enum {
    QK_ISA_SCALAR,
    QK_ISA_AVX2,       /* AVX2, FMA and F16C, as every CPU with AVX2 has them */
    QK_ISA_AVXVNNI,    /* the VEX form of the 8-bit dot product, on top of avx2 */
    QK_ISA_AVX512,     /* F, BW, VL and DQ, on top of avx2 */
    QK_ISA_AVX512VNNI256, /* the same CPUs as avx512vnni, in 256-bit vectors */
    QK_ISA_AVX512VNNI, /* the EVEX form of the 8-bit dot product, on top of avx512 */
    QK_ISA_AVX512VBMI, /* VBMI, permutations of bytes, on top of avx512vnni */
    QK_ISA_NEON,
    QK_ISA_COUNT
} qk_isa;

/* Lower-case name as users type it in QUANTKIT_ISA. */
const char *qk_isa_name(qk_isa isa);

/* The isa of that name, or -1. */
int qk_isa_from_name(const char *name);

/* Bit mask over qk_isa: what the compiler could build and this CPU and its operating system can run. */
uint32_t qk_isa_detected(void);

/* Bit mask over qk_isa: `isa` itself and every set whose kernels run wherever it runs. */
uint32_t qk_isa_includes(qk_isa isa);

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define QK_X86 1
#else
#define QK_X86 0
#endif

#endif

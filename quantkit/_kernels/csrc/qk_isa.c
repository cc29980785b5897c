/* CPU detection by CPUID and XGETBV: the same answer from every compiler, the operating system's consent included. */
#include "qk_isa.h"

#include <string.h>

#define BIT(isa) (1u << (isa))

static const char *const names[QK_ISA_COUNT] = {"scalar", "avx2", "avxvnni", "avx512", "avx512vnni256", "avx512vnni", "avx512vbmi", "neon"};

const char *qk_isa_name(qk_isa isa) { return names[isa]; }

int qk_isa_from_name(const char *name) {
    for (int i = 0; i < QK_ISA_COUNT; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

uint32_t qk_isa_includes(qk_isa isa) {
    const uint32_t base = BIT(QK_ISA_SCALAR);
    switch (isa) {
        case QK_ISA_AVX2: return base | BIT(QK_ISA_AVX2);
        case QK_ISA_AVXVNNI: return base | BIT(QK_ISA_AVX2) | BIT(QK_ISA_AVXVNNI);
        case QK_ISA_AVX512: return base | BIT(QK_ISA_AVX2) | BIT(QK_ISA_AVX512);
        case QK_ISA_AVX512VNNI256: return base | BIT(QK_ISA_AVX2) | BIT(QK_ISA_AVX512) | BIT(QK_ISA_AVX512VNNI256);
        case QK_ISA_AVX512VNNI: return base | BIT(QK_ISA_AVX2) | BIT(QK_ISA_AVX512) | BIT(QK_ISA_AVX512VNNI);
        case QK_ISA_AVX512VBMI: return qk_isa_includes(QK_ISA_AVX512VNNI) | BIT(QK_ISA_AVX512VBMI);
        case QK_ISA_NEON: return base | BIT(QK_ISA_NEON);
        default: return base;
    }
}

#if QK_X86
#include <cpuid.h>

static uint64_t xgetbv0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((uint64_t)hi << 32) | lo;
}

uint32_t qk_isa_detected(void) {
    uint32_t found = BIT(QK_ISA_SCALAR), a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    const int osxsave = (c >> 27) & 1, fma = (c >> 12) & 1, f16c = (c >> 29) & 1, pclmul = (c >> 1) & 1;
    if (!osxsave || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    const uint64_t xcr0 = xgetbv0();
    const int os_ymm = (xcr0 & 0x06) == 0x06, os_zmm = (xcr0 & 0xe6) == 0xe6;
    const int avx2 = (b >> 5) & 1;
    const int avx512 = ((b >> 16) & 1) && ((b >> 17) & 1) && ((b >> 30) & 1) && ((b >> 31) & 1); /* F DQ BW VL */
    const int vnni = (c >> 11) & 1, vbmi = (c >> 1) & 1;
    if (!(os_ymm && avx2 && fma && f16c && pclmul)) return found;
    found |= BIT(QK_ISA_AVX2);
    if (os_zmm && avx512) {
        found |= BIT(QK_ISA_AVX512);
        if (vnni) found |= BIT(QK_ISA_AVX512VNNI256) | BIT(QK_ISA_AVX512VNNI);
        if (vnni && vbmi) found |= BIT(QK_ISA_AVX512VBMI);
    }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && ((a >> 4) & 1)) found |= BIT(QK_ISA_AVXVNNI);
    return found;
}
#else /* no vector kernels of its own yet: the portable ones serve, and say so */
uint32_t qk_isa_detected(void) { return BIT(QK_ISA_SCALAR); }
#endif

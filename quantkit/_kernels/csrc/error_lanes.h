/* The loss of codes, over 32 lanes: the same sums on every instruction set, because element i belongs to lane i % 32
 * whatever the width of a vector. Who includes this defines TARGET, WIDTH (floats of a vector), LARGER(a, b), WIDE_U8(p)
 * and WIDE_S8(p) (codes as a vector of int32), and EACH(f), which is f(0) to f(32 / WIDTH - 1): sums that have names stay
 * in registers. */
#include <string.h>

#define LANES 32

typedef float floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ints __attribute__((vector_size(4 * WIDTH)));

#define BEGIN(v) floats signal##v = {0}, noise##v = {0}, most##v = {0};

#define STEP(v)                                                                                   \
    {                                                                                             \
        floats value;                                                                             \
        memcpy(&value, x + i + v * WIDTH, sizeof value);                                          \
        PARAMETERS(v)                                                                             \
        const floats d = __builtin_convertvector(WIDE(codes + i + v * WIDTH) - zero, floats) * scale - value; \
        signal##v += value * value;                                                               \
        noise##v += d * d;                                                                        \
        most##v = LARGER((floats)((ints)d & 0x7fffffff), most##v);                                \
    }

#define END(v)                                                                                    \
    memcpy(sums[0] + v * WIDTH, &signal##v, sizeof signal##v);                                    \
    memcpy(sums[1] + v * WIDTH, &noise##v, sizeof noise##v);                                      \
    memcpy(sums[2] + v * WIDTH, &most##v, sizeof most##v);

/* The vectors of whole rounds of lanes; returns how many elements those are. */
#define ERROR_ROUNDS(name, code)                                                                  \
    static TARGET int64_t name(const float *x, const code *codes, int64_t n, const float *scales, const int32_t *zeros, \
                               float sums[3][LANES]) {                                            \
        const floats scale = (floats){0} + *scales;                                               \
        const ints zero = (ints){0} + *zeros;                                                     \
        int64_t i = 0;                                                                            \
        (void)scale, (void)zero;                                                                  \
        EACH(BEGIN)                                                                               \
        for (; i + LANES <= n; i += LANES) { EACH(STEP) }                                         \
        EACH(END)                                                                                 \
        return i;                                                                                 \
    }

#define PARAMETERS(v)
#define WIDE WIDE_U8
ERROR_ROUNDS(rounds_u8, uint8_t)
#undef WIDE
#define WIDE WIDE_S8
ERROR_ROUNDS(rounds_s8, int8_t)
#undef PARAMETERS
#define PARAMETERS(v)                                                                             \
    floats scale;                                                                                 \
    ints zero;                                                                                    \
    memcpy(&scale, scales + i + v * WIDTH, sizeof scale);                                         \
    memcpy(&zero, zeros + i + v * WIDTH, sizeof zero);
ERROR_ROUNDS(rounds_each_s8, int8_t)
#undef WIDE
#define WIDE WIDE_U8
ERROR_ROUNDS(rounds_each_u8, uint8_t)

#define ERROR_KERNEL(name, code, type)                                                            \
    TARGET void name(const float *x, const void *y, int64_t n, const qk_affine *p, qk_loss *loss) { \
        const code *codes = y;                                                                    \
        float sums[3][LANES];                                                                     \
        int64_t i = (p->vector ? rounds_each_##type : rounds_##type)(x, codes, n, p->scale, p->zero_point, sums); \
        for (int k = 0; i < n; i++, k++) {                                                        \
            const int64_t at = p->vector ? i : 0;                                                 \
            const float value = x[i], d = (float)(codes[i] - p->zero_point[at]) * p->scale[at] - value; \
            const float away = d < 0 ? -d : d;                                                    \
            sums[0][k] += value * value;                                                          \
            sums[1][k] += d * d;                                                                  \
            sums[2][k] = away > sums[2][k] ? away : sums[2][k];                                   \
        }                                                                                         \
        for (int width = LANES / 2; width; width /= 2)                                            \
            for (int k = 0; k < width; k++) {                                                     \
                sums[0][k] += sums[0][k + width];                                                 \
                sums[1][k] += sums[1][k + width];                                                 \
                sums[2][k] = sums[2][k + width] > sums[2][k] ? sums[2][k + width] : sums[2][k];   \
            }                                                                                     \
        loss->signal += sums[0][0];                                                               \
        loss->noise += sums[1][0];                                                                \
        loss->most = sums[2][0] > loss->most ? sums[2][0] : loss->most;                           \
    }

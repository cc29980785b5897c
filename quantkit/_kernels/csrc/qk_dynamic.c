#include "qk_dynamic.h"

#include <float.h>
#include <limits.h>
#include <math.h>

#include "qk_statistics.h"

/* The statement of choose_qparams in quantkit/qparams.py for uint8 and one finite range; the tests compare the two. */
void qk_dynamic_choose(double low, double high, float *scale, int32_t *zero_point) {
    const float lo = (float)fmax(fmin(low, 0), -FLT_MAX), hi = (float)fmin(fmax(high, 0), FLT_MAX), width = hi - lo;
    float found = isfinite(width) ? width / 255.0f : hi / 255.0f - lo / 255.0f;
    if (lo == 0 && hi == 0) found = 1;
    else if (found < FLT_MIN) found = FLT_MIN;
    const float zero = rintf(0.0f - lo / found);
    *zero_point = zero < 0 ? 0 : zero > 255 ? 255 : (int32_t)zero;
    const float farthest = (float)(*zero_point > 255 - *zero_point ? *zero_point : 255 - *zero_point);
    *scale = isfinite(found * farthest) ? found : nextafterf(FLT_MAX / farthest, 0);
}

int qk_dynamic_run(const qk_dynamic_call *call) {
    qk_range range = {INFINITY, -INFINITY, 0};
    if (!call->empty) {
        qk_statistics_call found = {.layout = call->affine.layout, .x = call->affine.x, .dtype = call->affine.x_dtype,
                               .ranges = &range};
        found.layout.axis = -1;
        if (qk_range_run(&found) < 0) return -1;
        if (range.nonfinite) return range.nonfinite > INT_MAX ? INT_MAX : (int)range.nonfinite;
    }
    qk_affine_call affine = call->affine;
    if (range.lo > range.hi) range.lo = range.hi = 0;
    qk_dynamic_choose(range.lo, range.hi, &affine.scale_value, &affine.zero_point_value);
    *call->scale = affine.scale_value;
    *call->zero_point = (uint8_t)affine.zero_point_value;
    return call->empty ? 0 : qk_affine_run(&affine);
}

/* What follows the product of a hidden layer: ReLU or GELU, with a layer norm before or after it or without one, forward and
 * backward. kernels/relu_mlp.py calls it.
 *
 * All arrays are float32 and contiguous, [rows, width]. The backward pass computes means and deviations again, as that is
 * faster than reading what was kept of them. The order of each sum does not depend on the threads.
 */

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "thread_pool.h"

#define STRIP 32 /* rows that a thread processes at once */
#define SCALE 0.7978845608f /* sqrt(2 / pi) */
#define CUBE 0.044715f

typedef struct {
    const float *x, *scale, *shift, *dy; /* scale and shift: null without a norm */
    float *out, *partial; /* partial: [strips, 2, width], or null */
    int64_t rows, width, gelu, act_first, taken;
    float eps;
} Hidden;

/* gelu(x) = x share(x), as (1 + tanh(u)) / 2 = sigmoid(2u). */
static inline float share(float x) { return fast_sigmoid(2.0f * SCALE * (x + CUBE * x * x * x)); }

/* The slope of gelu at x, given share(x). */
static inline float slope(float x, float s) { return s + x * s * (1.0f - s) * 2.0f * SCALE * (1.0f + 3.0f * CUBE * x * x); }

/* y = activation(x); both may be the same array. */
static inline void activate(const float *x, float *y, int64_t width, int64_t is_gelu) {
    if (is_gelu) {
        _Pragma("omp simd") for (int64_t i = 0; i < width; i++) y[i] = x[i] * share(x[i]);
    } else {
        _Pragma("omp simd") for (int64_t i = 0; i < width; i++) y[i] = x[i] < 0.0f ? 0.0f : x[i]; /* NaN stays NaN */
    }
}

/* y = gelu(x) and slopes = gelu'(x), in the time of one of them. */
static inline void activate_with_slope(const float *x, float *y, float *slopes, int64_t width) {
    _Pragma("omp simd") for (int64_t i = 0; i < width; i++) {
        float s = share(x[i]);
        y[i] = x[i] * s, slopes[i] = slope(x[i], s);
    }
}

/* g = g activation'(x). */
static inline void through(const float *x, float *g, int64_t width, int64_t is_gelu) {
    if (is_gelu) {
        _Pragma("omp simd") for (int64_t i = 0; i < width; i++) g[i] *= slope(x[i], share(x[i]));
    } else {
        _Pragma("omp simd") for (int64_t i = 0; i < width; i++) g[i] = x[i] <= 0.0f ? 0.0f : g[i];
    }
}

/* n = (z - mean) / sqrt(variance + eps); return the factor. Both may be the same array. */
static inline float standardize(const float *z, float *n, int64_t width, float eps) {
    float sum = 0, squares = 0;
    _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < width; i++) sum += z[i];
    float mean = sum / (float)width;
    _Pragma("omp simd reduction(+ : squares)") for (int64_t i = 0; i < width; i++) squares += (z[i] - mean) * (z[i] - mean);
    float factor = 1.0f / sqrtf(squares / (float)width + eps);
    _Pragma("omp simd") for (int64_t i = 0; i < width; i++) n[i] = (z[i] - mean) * factor;
    return factor;
}

static inline void scale_shift(const float *n, const Hidden *c, float *y) {
    _Pragma("omp simd") for (int64_t i = 0; i < c->width; i++) y[i] = n[i] * c->scale[i] + c->shift[i];
}

static void forth_rows(void *given, Worker worker) {
    Hidden *c = given;
    (void)worker;
    int64_t strips = (c->rows + STRIP - 1) / STRIP, width = c->width;
    for (int64_t strip = next_piece(&c->taken); strip < strips; strip = next_piece(&c->taken))
        for (int64_t r = strip * STRIP; r < c->rows && r < (strip + 1) * STRIP; r++) {
            const float *x = c->x + r * width;
            float *y = c->out + r * width;
            if (c->act_first) activate(x, y, width, c->gelu);
            if (c->scale) standardize(c->act_first ? y : x, y, width, c->eps), scale_shift(y, c, y);
            if (!c->act_first) activate(y, y, width, c->gelu);
        }
}

/* The gradient of a row through its norm: from g to g; `n` is the standardized row, `partial` what is added up over rows. */
static inline void through_norm(const Hidden *c, const float *n, float factor, float *g, float *partial) {
    int64_t width = c->width;
    float sum = 0, along = 0;
    for (int64_t i = 0; partial && i < width; i++) partial[i] += g[i] * n[i], partial[width + i] += g[i];
    _Pragma("omp simd reduction(+ : sum, along)") for (int64_t i = 0; i < width; i++) {
        g[i] *= c->scale[i];
        sum += g[i], along += g[i] * n[i];
    }
    sum /= (float)width, along /= (float)width;
    _Pragma("omp simd") for (int64_t i = 0; i < width; i++) g[i] = (g[i] - sum - n[i] * along) * factor;
}

static void back_rows(void *given, Worker worker) {
    Hidden *c = given;
    (void)worker;
    int64_t strips = (c->rows + STRIP - 1) / STRIP, width = c->width;
    float n[width], between[width], slopes[width];
    int64_t both = c->scale && c->act_first && c->gelu;
    for (int64_t strip = next_piece(&c->taken); strip < strips; strip = next_piece(&c->taken)) {
        float *partial = c->partial ? c->partial + strip * 2 * width : 0, factor = 0;
        if (partial) memset(partial, 0, 2 * width * sizeof(float));
        for (int64_t r = strip * STRIP; r < c->rows && r < (strip + 1) * STRIP; r++) {
            const float *x = c->x + r * width;
            float *g = c->out + r * width;
            memcpy(g, c->dy + r * width, width * sizeof(float));
            if (both) activate_with_slope(x, between, slopes, width);
            else if (c->scale && c->act_first) activate(x, between, width, 0);
            if (c->scale) factor = standardize(c->act_first ? between : x, n, width, c->eps);
            if (!c->act_first) scale_shift(n, c, between), through(between, g, width, c->gelu);
            if (c->scale) through_norm(c, n, factor, g, partial);
            if (both) {
                _Pragma("omp simd") for (int64_t i = 0; i < width; i++) g[i] *= slopes[i];
            } else if (c->act_first) through(x, g, width, c->gelu);
        }
    }
}

/* Without a norm, y = activation(x). With one, y = norm(activation(x)) scale + shift if `act_first`, else
 * activation(norm(x) scale + shift). Without a norm, `act_first` is 1. */
void hidden(const float *x, const float *scale, const float *shift, float *y, int64_t rows, int64_t width, int64_t is_gelu,
            int64_t act_first, float eps, int64_t threads) {
    Hidden c = {.x = x, .scale = scale, .shift = shift, .out = y, .rows = rows, .width = width, .gelu = is_gelu, .act_first = act_first, .eps = eps};
    together(forth_rows, &c, threads);
}

/* The gradients of x, and of scale and shift unless null; `partial` is [strips, 2, width] then. */
void hidden_backward(const float *x, const float *scale, const float *shift, const float *dy, float *dx, float *dscale,
                     float *dshift, float *partial, int64_t rows, int64_t width, int64_t is_gelu, int64_t act_first,
                     float eps, int64_t threads) {
    Hidden c = {.x = x, .scale = scale, .shift = shift, .dy = dy, .out = dx, .partial = partial, .rows = rows,
                .width = width, .gelu = is_gelu, .act_first = act_first, .eps = eps};
    together(back_rows, &c, threads);
    if (!dscale) return;
    memset(dscale, 0, width * sizeof(float)), memset(dshift, 0, width * sizeof(float));
    for (int64_t strip = 0; strip < (rows + STRIP - 1) / STRIP; strip++, partial += 2 * width)
        for (int64_t i = 0; i < width; i++) dscale[i] += partial[i], dshift[i] += partial[width + i];
}

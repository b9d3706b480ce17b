/* What perceptron.c and perceptron_tiles.c share: where a network lies, and layers of a few outputs. */

#ifndef REVERIE_PERCEPTRON_H
#define REVERIE_PERCEPTRON_H

#include "kernels.h"

#define PANEL 32
#ifdef __AVX512F__
#define LANES 16
#define TILE 8 /* rows at once: TILE * PANEL / LANES accumulators stay in registers */
#else
#define LANES 8
#define TILE 3
#endif
#define VECTORS (PANEL / LANES)
#define NARROW 8 /* outputs that are fewer are not worth a panel */
#define STRIP 64 /* rows of a batch that a thread takes at once */

typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4)));

typedef struct {
    int64_t copies, layers, stride, squash; /* squash: tanh on top */
    const int64_t *widths; /* [layers + 1] */
    const float *parameters;
} Network;

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What becomes of a finished tile: [rows, columns] of c, whose rows lie ldc apart. */
typedef enum { PLAIN, RELU, MASK, ADD } Then;

/* `bias` is [columns]; with MASK, `mask` lies like c and numbers become 0 where it is 0. */
static inline void finish(const float *out, float *c, int64_t ldc, int64_t rows, int64_t columns, const float *bias,
                          const float *mask, Then then) {
    for (int64_t r = 0; r < rows; r++, out += PANEL, c += ldc) {
        if (then == ADD) {
            for (int64_t j = 0; j < columns; j++) c[j] += out[j];
        } else if (then == MASK) {
            for (int64_t j = 0; j < columns; j++) c[j] = mask[r * ldc + j] != 0.0f ? out[j] : 0.0f;
        } else if (then == RELU) {
            for (int64_t j = 0; j < columns; j++) {
                float y = out[j] + bias[j];
                c[j] = y < 0.0f ? 0.0f : y; /* NaN stays NaN */
            }
        } else {
            for (int64_t j = 0; j < columns; j++) c[j] = bias ? out[j] + bias[j] : out[j];
        }
    }
}

/* ---------------------------------------------------------------------- a few outputs, such as a value */

static inline float sum_of(Vector x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

/* y [rows, outputs] of at most NARROW outputs: dots of rows of x with columns, of which `scratch` holds one. */
static inline void forward_narrow(const float *x, int64_t inputs, const float *weights, float *y, int64_t outputs, int64_t rows,
                           Then then, float *scratch) {
    const float *bias = weights + inputs * outputs;
    int64_t whole = inputs / (2 * LANES) * (2 * LANES);
    for (int64_t j = 0; j < outputs; j++) {
        for (int64_t k = 0; k < inputs; k++) scratch[k] = weights[k * outputs + j];
        for (int64_t r = 0; r < rows; r++) {
            const float *row = x + r * inputs;
            Vector even = {0}, odd = {0}; /* two, as an addition waits for the last one */
            for (int64_t k = 0; k < whole; k += 2 * LANES) {
                even += *(const Vector *)(row + k) * *(const Vector *)(scratch + k);
                odd += *(const Vector *)(row + k + LANES) * *(const Vector *)(scratch + k + LANES);
            }
            float sum = sum_of(even + odd);
            for (int64_t k = whole; k < inputs; k++) sum += row[k] * scratch[k];
            sum += bias[j];
            y[r * outputs + j] = then == RELU && sum < 0.0f ? 0.0f : sum;
        }
    }
}

/* x^T dy of at most NARROW outputs, and the sums of dy. */
static inline void gradient_narrow(const float *x, int64_t inputs, const float *dy, int64_t outputs, float *dweights,
                            int64_t rows) {
    int64_t whole = inputs / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        Vector sum[NARROW] = {{0}};
        for (int64_t r = 0; r < rows; r++) {
            Vector in = *(const Vector *)(x + r * inputs + i);
            for (int64_t j = 0; j < outputs; j++) sum[j] += in * dy[r * outputs + j];
        }
        for (int64_t j = 0; j < outputs; j++)
            for (int64_t k = 0; k < LANES; k++) dweights[(i + k) * outputs + j] = sum[j][k];
    }
    for (int64_t j = 0; j < outputs; j++) {
        for (int64_t i = whole; i < inputs; i++) {
            float sum = 0;
            for (int64_t r = 0; r < rows; r++) sum += x[r * inputs + i] * dy[r * outputs + j];
            dweights[i * outputs + j] = sum;
        }
        float sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += dy[r * outputs + j];
        dweights[inputs * outputs + j] = sum;
    }
}

/* A layer has so many panels of columns. */
static inline int64_t panels_of(int64_t width) { return (width + PANEL - 1) / PANEL; }

/* Which layer and panel number `item` is, counting the panels of all layers; their widths begin at `widths`. */
static inline int64_t find_panel(const int64_t *widths, int64_t *item) {
    int64_t l = 0;
    while (*item >= panels_of(widths[l])) *item -= panels_of(widths[l++]);
    return l;
}

#endif

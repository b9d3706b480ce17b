/* Shared by perceptron.c and perceptron_backward.c: the layout of a network, and layers of a few outputs. */

#ifndef REVERIE_PERCEPTRON_H
#define REVERIE_PERCEPTRON_H

#include <stdlib.h>

#include "panels.h"

#define STRIP 64 /* rows of a batch that a thread processes at once */
#define LONG_STRIP (4 * STRIP) /* the same, if there are enough of them for all threads: the weights are read less often */
#define WIDE 200000 /* weights of a layer from which a panel is copied: in the matrix, its rows are pages apart */
#define NARROW 8 /* layers with at most this many outputs do not use panels */

typedef struct {
    int64_t copies, layers, stride, squash, tanh; /* whether tanh is applied to the output, and between layers instead of ReLU */
    const int64_t *widths; /* [layers + 1] */
    const float *parameters;
} Network;

/* The rows that a thread processes at once. */
static inline int64_t strip_for(int64_t rows, int64_t copies, int64_t threads) {
    int64_t strip = LONG_STRIP;
    while (strip > STRIP && (rows + strip - 1) / strip * copies < 2 * threads) strip /= 2;
    return strip;
}

/* Memory for a call, kept for the thread's next call, because the system would have to clear new memory. Null if there is
 * none left. */
static inline void *room_for(int64_t bytes) {
    static _Thread_local void *kept = 0;
    static _Thread_local int64_t size = 0;
    if (bytes > size) {
        free(kept);
        size = (bytes + 4095) / 4096 * 4096;
        kept = aligned_alloc(4096, (size_t)size);
        size = kept ? size : 0;
    }
    return kept;
}

/* ---------------------------------------------------------------------- a few outputs, such as a value */

#ifdef __AVX512F__
static inline float sum_of(Vector x) { return _mm512_reduce_add_ps((__m512)x); }
#else
static inline float sum_of(Vector x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}
#endif

/* Transpose weights [inputs, outputs] of at most NARROW outputs to `columns` [outputs, inputs], inputs [first, end). */
static inline void row_columns(const float *weights, int64_t inputs, int64_t outputs, int64_t first, int64_t end,
                              float *columns) {
    for (int64_t k = first; k < end; k++)
        for (int64_t j = 0; j < outputs; j++) columns[j * inputs + k] = weights[k * outputs + j];
}

/* A layer for two rows, or for one row twice; `outputs` is a compile-time constant, so that the sums are registers. */
static inline __attribute__((always_inline)) void narrow_rows(const float *x, const float *other, int64_t inputs,
                                                              const float *columns, const float *bias, float *y, float *below,
                                                              const int64_t outputs, Then then) {
    int64_t whole = inputs / LANES * LANES;
    Vector sum[2][NARROW] = {{{0}}};
    for (int64_t k = 0; k < whole; k += LANES)
        for (int64_t j = 0; j < outputs; j++) {
            Vector column = *(const Vector *)(columns + j * inputs + k);
            sum[0][j] += *(const Vector *)(x + k) * column;
            sum[1][j] += *(const Vector *)(other + k) * column;
        }
    for (int64_t j = 0; j < outputs; j++) {
        float a = sum_of(sum[0][j]), b = sum_of(sum[1][j]);
        for (int64_t k = whole; k < inputs; k++) a += x[k] * columns[j * inputs + k], b += other[k] * columns[j * inputs + k];
        a += bias[j], b += bias[j];
        y[j] = then == RELU && a < 0.0f ? 0.0f : a;
        below[j] = then == RELU && b < 0.0f ? 0.0f : b;
    }
}

/* A layer of at most NARROW outputs: y [rows, outputs] are dot products of rows of x with columns. */
static inline void forward_narrow(const float *x, int64_t inputs, const float *columns, const float *bias, float *y,
                                  int64_t outputs, int64_t rows, Then then) {
    for (int64_t r = 0; r < rows; r += 2) {
        int64_t next = r + 1 < rows;
        const float *a = x + r * inputs, *b = a + next * inputs;
        float *to = y + r * outputs, *below = to + next * outputs;
#define CASE(n) case n: narrow_rows(a, b, inputs, columns, bias, to, below, n, then); break
        switch (outputs) { CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6); CASE(7); CASE(8); }
#undef CASE
    }
}

/* LANES rows of x^T dy, from `x` to `dweights`; `outputs` is a compile-time constant, so that the sums are registers. */
static inline __attribute__((always_inline)) void gradient_rows(const float *x, int64_t inputs, const float *dy,
                                                                const int64_t outputs, float *dweights, int64_t rows) {
    Vector sum[NARROW] = {{0}};
    for (int64_t r = 0; r < rows; r++, x += inputs, dy += outputs) {
        Vector in = *(const Vector *)x;
        for (int64_t j = 0; j < outputs; j++) sum[j] += in * dy[j];
    }
    for (int64_t j = 0; j < outputs; j++)
        for (int64_t k = 0; k < LANES; k++) dweights[k * outputs + j] = sum[j][k];
}

/* The gradients of the weights and bias of at most NARROW outputs: x^T dy, and the sums of dy over rows. */
static inline void gradient_narrow(const float *x, int64_t inputs, const float *dy, int64_t outputs, float *dweights,
                                   int64_t rows) {
    int64_t whole = inputs / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        float *to = dweights + i * outputs;
#define CASE(n) case n: gradient_rows(x + i, inputs, dy, n, to, rows); break
        switch (outputs) { CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6); CASE(7); CASE(8); }
#undef CASE
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

#endif

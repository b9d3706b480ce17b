/* The last layer of a two-hot head, with its mean and its loss. It processes STRIP rows at a time, so that logits stay in
 * the cache and are never stored as a whole. kernels/number_head.py calls it and defines what it computes.
 *
 * All arrays are float32 and contiguous: x [rows, inputs], weights [bins, inputs], bias [bins]. The order of sums over rows
 * does not depend on the threads.
 */

#include "panels.h"

enum { STRIP = 64, PIECES = 16 }; /* rows at once; parts of all rows, each of which has its own sums */

typedef struct {
    const float *x, *weights, *bias;
    int64_t rows, inputs, bins;
} Head;

/* The length of a row of logits in memory, padded to whole panels. */
static inline int64_t room(int64_t bins) { return panels_of(bins) * PANEL; }

/* The weights as panels: [panels, inputs, PANEL]. */
static void transpose_all(const Head *h, float *panels, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t j = 0; j < panels_of(h->bins); j++)
        transpose_panel(h->weights, h->bins, h->inputs, j * PANEL, panels + j * h->inputs * PANEL);
}

/* The logits [count, room] of the rows from `first` on. */
static void strip_logits(const Head *h, const float *panels, int64_t first, int64_t count, float *logits) {
    for (int64_t j = 0; j < h->bins; j += PANEL)
        panel_product(h->x + first * h->inputs, h->inputs, 1, panels + j * h->inputs, PANEL, logits + j, room(h->bins), count,
                      h->inputs, least(PANEL, h->bins - j), h->bias + j, 0, PLAIN);
}

/* The ln sum exp of each row's logits and, if `mean` is not null, the expected value; `values` [bins] are symmetric about 0.
 * `panels` is [panels, inputs, PANEL], `scratch` [threads, STRIP + 1, room]. */
void head_read(const float *x, const float *weights, const float *bias, const float *values, float *mean, float *lse,
               int64_t rows, int64_t inputs, int64_t bins, float *panels, float *scratch, int threads) {
    const Head h = {x, weights, bias, rows, inputs, bins};
    const int64_t strips = (rows + STRIP - 1) / STRIP, wide = room(bins);
    int64_t taken = 0;
    transpose_all(&h, panels, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t k = 0; k < threads; k++) {
        float *logits = scratch + k * (STRIP + 1) * wide, *weight = logits + STRIP * wide;
        for (int64_t s = next_of(&taken); s < strips; s = next_of(&taken)) {
            const int64_t first = s * STRIP, count = least(STRIP, rows - first);
            strip_logits(&h, panels, first, count, logits);
            for (int64_t i = 0; i < count; i++) {
                if (mean) mean[first + i] = softmax_mean_row(logits + i * wide, values, weight, bins, lse + first + i);
                else lse[first + i] = log_sum_exp_row(logits + i * wide, bins);
            }
        }
    }
}

/* sum_k counts_k (lse - logits[index_k]) of each row; index and counts are [rows, picks]. */
void head_loss(const float *x, const float *weights, const float *bias, const float *lse, const int64_t *index,
               const float *counts, float *out, int64_t rows, int64_t inputs, int64_t picks, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) {
        float loss = 0;
        for (int64_t k = 0; k < picks; k++) {
            const float *row = x + i * inputs, *weight = weights + index[i * picks + k] * inputs;
            float logit = bias[index[i * picks + k]];
#pragma omp simd reduction(+ : logit)
            for (int64_t j = 0; j < inputs; j++) logit += row[j] * weight[j];
            loss += counts[i * picks + k] * (lse[i] - logit);
        }
        out[i] = loss;
    }
}

/* c = a b, one panel of columns after the other; the last one is copied to `edge` [depth, PANEL]. b is [depth, width], c
 * [rows, width]. */
static void columns_product(const float *a, int64_t ar, int64_t ak, const float *b, float *c, int64_t width, int64_t rows,
                            int64_t depth, float *edge, Then then) {
    for (int64_t j = 0; j < width; j += PANEL) {
        int64_t columns = least(PANEL, width - j), ld = width;
        const float *panel = b + j;
        if (columns < PANEL) pad_columns(panel, width, edge, depth, columns), panel = edge, ld = PANEL;
        panel_product(a, ar, ak, panel, ld, c + j, width, rows, depth, columns, 0, 0, then);
    }
}

/* The gradients of head_loss times dy [rows]. Each piece of the rows has its own sums, [bins, inputs] and [bins], in `sums`
 * [PIECES, bins, inputs + 1]. `panels` is [panels, inputs, PANEL]; `scratch` is, for each thread, [STRIP, room] and
 * [max(STRIP, room), PANEL]. */
void head_backward(const float *x, const float *weights, const float *bias, const float *lse, const int64_t *index,
                   const float *counts, const float *dy, float *dx, float *dweights, float *dbias, int64_t rows,
                   int64_t inputs, int64_t bins, int64_t picks, float *panels, float *sums, float *scratch, int threads) {
    const Head h = {x, weights, bias, rows, inputs, bins};
    const int64_t strips = (rows + STRIP - 1) / STRIP, wide = room(bins), each = bins * (inputs + 1);
    const int64_t pieces = least(PIECES, strips), deepest = wide > STRIP ? wide : STRIP;
    int64_t taken = 0;
    transpose_all(&h, panels, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t k = 0; k < threads; k++) {
        float *logits = scratch + k * (STRIP * wide + deepest * PANEL), *edge = logits + STRIP * wide;
        for (int64_t p = next_of(&taken); p < pieces; p = next_of(&taken)) {
            float *dw = sums + p * each, *db = dw + bins * inputs;
            memset(db, 0, bins * sizeof(float));
            for (int64_t s = strips * p / pieces; s < strips * (p + 1) / pieces; s++) {
                const int64_t first = s * STRIP, count = least(STRIP, rows - first);
                strip_logits(&h, panels, first, count, logits);
                for (int64_t i = 0; i < count; i++) {
                    const int64_t row = first + i;
                    float *d = logits + i * wide;
                    cross_entropy_row_backward(d, lse[row], index + row * picks, counts + row * picks, dy[row], d, bins, picks);
#pragma omp simd
                    for (int64_t j = 0; j < bins; j++) db[j] += d[j];
                }
                columns_product(logits, wide, 1, weights, dx + first * inputs, inputs, count, bins, edge, PLAIN);
                columns_product(logits, 1, wide, x + first * inputs, dw, inputs, bins, count, edge,
                                s == strips * p / pieces ? PLAIN : ADD);
            }
        }
    }
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t j = 0; j < bins; j++) {
        memcpy(dweights + j * inputs, sums + j * inputs, inputs * sizeof(float));
        dbias[j] = sums[bins * inputs + j];
        for (int64_t p = 1; p < pieces; p++) {
            const float *dw = sums + p * each + j * inputs;
#pragma omp simd
            for (int64_t i = 0; i < inputs; i++) dweights[j * inputs + i] += dw[i];
            dbias[j] += sums[p * each + bins * inputs + j];
        }
    }
}

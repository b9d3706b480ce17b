/* Batch normalization of K batches, forward and backward; kernels/elementwise.py calls it.
 *
 * All arrays are float32 and contiguous: x [copies, rows, width], and [copies, width] for each column. A thread processes
 * COLUMNS columns of all rows at a time, which stay in the cache. The order of each sum does not depend on the threads.
 */

#include <math.h>

#include "kernels.h"
#include "thread_pool.h"

#define COLUMNS 128
#define EACH(j) _Pragma("omp simd") for (int64_t j = 0; j < columns; j++)

typedef struct {
    const float *x, *scale, *shift, *dy;
    float *out, *mean, *var, *dscale, *dshift; /* out: y, or dx */
    int64_t copies, rows, width, taken;
    float eps;
} Batches;

/* Take the next columns: return where they begin in [copies, width] and `at` in x, or -1 if there are none left. */
static int64_t next_columns(Batches *c, int64_t *at, int64_t *columns) {
    int64_t pieces = (c->width + COLUMNS - 1) / COLUMNS, item = next_piece(&c->taken), copy = item / pieces;
    int64_t first = item % pieces * COLUMNS;
    *at = copy * c->rows * c->width + first;
    *columns = c->width - first < COLUMNS ? c->width - first : COLUMNS;
    return copy < c->copies ? copy * c->width + first : -1;
}

static void forth_columns(void *given, Worker worker) {
    Batches *c = given;
    (void)worker;
    int64_t at, columns;
    for (int64_t to = next_columns(c, &at, &columns); to >= 0; to = next_columns(c, &at, &columns)) {
        float sum[COLUMNS] = {0}, squares[COLUMNS] = {0}, *mean = c->mean + to, *var = c->var + to;
        const float *x = c->x + at, *shift = c->shift + to;
        for (int64_t r = 0; r < c->rows; r++) EACH(j) sum[j] += x[r * c->width + j];
        EACH(j) mean[j] = sum[j] / (float)c->rows;
        for (int64_t r = 0; r < c->rows; r++) EACH(j) squares[j] += (x[r * c->width + j] - mean[j]) * (x[r * c->width + j] - mean[j]);
        EACH(j) var[j] = squares[j] / (float)c->rows;
        if (!c->out) continue;
        EACH(j) sum[j] = c->scale[to + j] / sqrtf(var[j] + c->eps);
        for (int64_t r = 0; r < c->rows; r++) {
            float *y = c->out + at + r * c->width;
            EACH(j) y[j] = (x[r * c->width + j] - mean[j]) * sum[j] + shift[j];
        }
    }
}

static void back_columns(void *given, Worker worker) {
    Batches *c = given;
    (void)worker;
    int64_t at, columns;
    for (int64_t to = next_columns(c, &at, &columns); to >= 0; to = next_columns(c, &at, &columns)) {
        float sum[COLUMNS] = {0}, along[COLUMNS] = {0}, inverse[COLUMNS], factor[COLUMNS];
        const float *x = c->x + at, *dy = c->dy + at, *mean = c->mean + to;
        EACH(j) inverse[j] = 1.0f / sqrtf(c->var[to + j] + c->eps);
        for (int64_t r = 0; r < c->rows; r++)
            EACH(j) {
                sum[j] += dy[r * c->width + j];
                along[j] += dy[r * c->width + j] * (x[r * c->width + j] - mean[j]);
            }
        EACH(j) {
            along[j] *= inverse[j];
            c->dscale[to + j] = along[j], c->dshift[to + j] = sum[j];
            sum[j] /= (float)c->rows, along[j] *= inverse[j] / (float)c->rows;
            factor[j] = c->scale[to + j] * inverse[j];
        }
        for (int64_t r = 0; r < c->rows; r++) {
            float *dx = c->out + at + r * c->width;
            EACH(j) dx[j] = factor[j] * (dy[r * c->width + j] - sum[j] - (x[r * c->width + j] - mean[j]) * along[j]);
        }
    }
}

/* y = scale (x - mean) / sqrt(var + eps) + shift, with the mean and the variance of each column; null: these alone. */
void batch_norm(const float *x, const float *scale, const float *shift, float *y, float *mean, float *var, int64_t copies,
                int64_t rows, int64_t width, float eps, int64_t threads) {
    Batches c = {.x = x, .scale = scale, .shift = shift, .out = y, .mean = mean, .var = var, .copies = copies, .rows = rows,
                 .width = width, .eps = eps};
    together(forth_columns, &c, threads);
}

/* The gradients of x, also through mean and variance, of scale and of shift. */
void batch_norm_backward(const float *x, const float *scale, float *mean, float *var, const float *dy, float *dx,
                         float *dscale, float *dshift, int64_t copies, int64_t rows, int64_t width, float eps,
                         int64_t threads) {
    Batches c = {.x = x, .scale = scale, .dy = dy, .out = dx, .mean = mean, .var = var, .dscale = dscale, .dshift = dshift,
                 .copies = copies, .rows = rows, .width = width, .eps = eps};
    together(back_columns, &c, threads);
}

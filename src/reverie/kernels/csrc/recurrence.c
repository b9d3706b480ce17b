/* The recurrent state-space model of nn/rssm.py, with many steps in one call. kernels/rssm_cpu.py calls it.
 *
 * The rows of a batch are independent, so each thread processes some of them through all steps, and threads synchronize
 * only at the end. All arrays are float32 and contiguous, with time as the first axis. Weights are packed in panels of
 * PANEL outputs, [outputs / PANEL, inputs, PANEL], padded with zeros.
 */

#include "panels.h"

/* Sizes and weights; the fields are in the order of Model in kernels/rssm_cpu.py. */
typedef struct {
    int64_t rows, deter, blocks, hidden, stoch, classes;
    double eps, unimix;
    const float *in_deter, *in_deter_bias, *in_deter_scale;
    const float *in_stoch, *in_stoch_bias, *in_stoch_scale;
    const float *shared, *own, *recurrent_bias, *recurrent_scale;
    const float *gates, *gates_bias;
    const float *head, *head_bias, *head_scale; /* posterior's or prior's first layer; see observe() and imagine() */
    const float *second, *second_bias, *second_scale;
    const float *logits, *logits_bias;
} Model;

/* A tile of a single row. It has few accumulators, so four sets take turns: no addition waits for the previous one. */
static inline void row_product(const float *x, const float *w, float *out, int64_t inputs) {
    Vector sum[4][VECTORS];
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < VECTORS; v++) sum[k][v] = (Vector){0};
    int64_t i = 0;
    for (; i + 4 <= inputs; i += 4)
        for (int k = 0; k < 4; k++)
            for (int v = 0; v < VECTORS; v++) sum[k][v] += x[i + k] * ((const Vector *)(w + (i + k) * PANEL))[v];
    for (; i < inputs; i++)
        for (int v = 0; v < VECTORS; v++) sum[0][v] += x[i] * ((const Vector *)(w + i * PANEL))[v];
    for (int v = 0; v < VECTORS; v++) sum[0][v] = (sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]);
    memcpy(out, sum[0], PANEL * sizeof(float));
}

/* y = base + x w, or y += x w if base is null. base is [outputs] if ldbase is 0, else it has a row for each row of x. */
static void multiply(const float *x, int64_t ldx, const float *w, const float *base, int64_t ldbase, float *y,
                     int64_t ldy, int64_t rows, int64_t inputs, int64_t outputs) {
    float out[TILE * PANEL];
    for (int64_t o = 0; o < outputs; o += PANEL, w += inputs * PANEL) {
        int64_t columns = outputs - o < PANEL ? outputs - o : PANEL;
        for (int64_t i = 0; i < rows; i += TILE) {
            int64_t count = rows - i < TILE ? rows - i : TILE;
            const float *in = x + i * ldx;
            if (count == TILE)
                tile(in, ldx, 1, w, PANEL, out, inputs, TILE);
            else
                for (int64_t r = 0; r < count; r++) row_product(in + r * ldx, w, out + r * PANEL, inputs);
            for (int64_t r = 0; r < count; r++) {
                float *to = y + (i + r) * ldy + o;
                const float *from = base ? base + (i + r) * ldbase + o : to;
                for (int64_t j = 0; j < columns; j++) to[j] = from[j] + out[r * PANEL + j];
            }
        }
    }
}

static inline int64_t panels(int64_t outputs) { return (outputs + PANEL - 1) / PANEL * PANEL; }

/* Multiply block k of x with block k of w; add the product to block k of y or, with a bias, replace it. */
static void multiply_blocks(const float *x, int64_t ldx, const float *w, const float *bias, float *y, int64_t rows,
                            int64_t blocks, int64_t inputs, int64_t outputs) {
    for (int64_t k = 0; k < blocks; k++)
        multiply(x + k * inputs, ldx, w + k * panels(outputs) * inputs, bias ? bias + k * outputs : 0, 0,
                 y + k * outputs, blocks * outputs, rows, inputs, outputs);
}

/* The values of one step that the backward pass needs, each [rows, ...]. */
typedef struct {
    float *pre_deter, *pre_stoch; /* [hidden] before the norm */
    float *shared;                /* [3 hidden], the inputs of all blocks */
    float *pre_recurrent, *recurrent; /* [deter] before and after the norm */
    float *gates;                 /* [blocks, 3, deter / blocks] */
} Step;

static void norm_rows(const float *x, const float *scale, float *y, int64_t ldy, int64_t rows, int64_t width,
                      float eps) {
    for (int64_t i = 0; i < rows; i++) norm_silu_row(x + i * width, scale, y + i * ldy, width, eps);
}

/* Compute h' from h [rows, deter], z [rows, stoch * classes] and the embedded action [rows, hidden]. The rows of h, z and
 * h' lie ldh, ldz and ldnext apart. */
static void sequence_step(const Model *m, const float *h, int64_t ldh, const float *z, int64_t ldz,
                          const float *action, Step s, float *next, int64_t ldnext, int64_t rows) {
    int64_t D = m->deter, N = m->hidden, K = m->blocks, Z = m->stoch * m->classes, d = D / K;
    float eps = (float)m->eps;
    multiply(h, ldh, m->in_deter, m->in_deter_bias, 0, s.pre_deter, N, rows, D, N);
    norm_rows(s.pre_deter, m->in_deter_scale, s.shared, 3 * N, rows, N, eps);
    multiply(z, ldz, m->in_stoch, m->in_stoch_bias, 0, s.pre_stoch, N, rows, Z, N);
    norm_rows(s.pre_stoch, m->in_stoch_scale, s.shared + N, 3 * N, rows, N, eps);
    for (int64_t i = 0; i < rows; i++) memcpy(s.shared + i * 3 * N + 2 * N, action + i * N, N * sizeof(float));
    multiply(s.shared, 3 * N, m->shared, m->recurrent_bias, 0, s.pre_recurrent, D, rows, 3 * N, D);
    multiply_blocks(h, ldh, m->own, 0, s.pre_recurrent, rows, K, d, d);
    norm_rows(s.pre_recurrent, m->recurrent_scale, s.recurrent, D, rows, D, eps);
    multiply_blocks(s.recurrent, D, m->gates, m->gates_bias, s.gates, rows, K, d, 3 * d);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < K; k++)
            gru_row(s.gates + (i * K + k) * 3 * d, h + i * ldh + k * d, next + i * ldnext + k * d, d);
}

/* Replace logits [rows, stoch, classes] by probabilities, and draw one-hot samples of them, whose rows lie ld apart. */
static void sample(const Model *m, float *logits, const float *uniform, float *onehot, int64_t ld, int64_t rows) {
    int64_t S = m->stoch, C = m->classes;
    unimix_rows(logits, logits, rows * S, C, (float)m->unimix);
    for (int64_t i = 0; i < rows; i++) {
        memset(onehot + i * ld, 0, S * C * sizeof(float));
        for (int64_t k = 0; k < S; k++)
            onehot[i * ld + k * C + draw_row(logits + (i * S + k) * C, uniform[i * S + k], C)] = 1.0f;
    }
}

/* The values of all steps, each [steps, rows, ...]; before_* are the masked states that a step starts from. */
typedef struct {
    float *before_deter, *before_stoch;
    float *pre_deter, *pre_stoch, *shared, *pre_recurrent, *recurrent, *gates;
    float *deter, *pre_head, *head, *probs, *stoch;
} Trace;

static void masked(const float *x, const float *keep, float *out, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) out[i * width + j] = keep[i] != 0.0f ? x[i * width + j] : 0.0f;
}

/* Filter: h_t = f(h, z, a), z_t ~ q(. | h_t, x_t). `embed` is x_t's part of the posterior's first layer, with its bias. */
void observe(const Model *m, const Trace *trace, const float *deter, const float *stoch, const float *action,
             const float *embed, const float *keep, const float *uniform, int64_t steps, int64_t threads) {
    int64_t M = m->rows, D = m->deter, N = m->hidden, S = m->stoch, Z = S * m->classes;
#pragma omp parallel for num_threads((int)threads) if (threads > 1)
    for (int64_t k = 0; k < threads; k++) {
        int64_t first = M * k / threads, rows = M * (k + 1) / threads - first;
        const float *h = deter + first * D, *z = stoch + first * Z;
        for (int64_t t = 0; t < steps; t++) {
            int64_t at = t * M + first; /* this thread's first row in all that is [steps, rows] */
            Step s = {trace->pre_deter + at * N,          trace->pre_stoch + at * N, trace->shared + at * 3 * N,
                      trace->pre_recurrent + at * D, trace->recurrent + at * D, trace->gates + at * 3 * D};
            float *before_h = trace->before_deter + at * D, *before_z = trace->before_stoch + at * Z;
            float *next = trace->deter + at * D, *hidden = trace->head + at * N, *probs = trace->probs + at * Z;
            masked(h, keep + at, before_h, rows, D);
            masked(z, keep + at, before_z, rows, Z);
            sequence_step(m, before_h, D, before_z, Z, action + at * N, s, next, D, rows);
            multiply(next, D, m->head, embed + at * N, N, trace->pre_head + at * N, N, rows, D, N);
            norm_rows(trace->pre_head + at * N, m->head_scale, hidden, N, rows, N, (float)m->eps);
            multiply(hidden, N, m->logits, m->logits_bias, 0, probs, Z, rows, N, Z);
            sample(m, probs, uniform + at * S, trace->stoch + at * Z, Z, rows);
            h = next, z = trace->stoch + at * Z;
        }
    }
}

/* The gradients of the layers' outputs, [steps, rows, ...] each, and each thread's part of the gradients of the four scales,
 * [threads, width]. The parts are added afterwards: a sum in the order in which threads end would not be reproducible. */
typedef struct {
    float *pre_deter, *pre_stoch, *action, *pre_recurrent, *gates, *pre_head, *logits;
    float *in_deter_scale, *in_stoch_scale, *recurrent_scale, *head_scale;
} Gradients;

static void norm_rows_backward(const float *x, const float *scale, const float *dy, int64_t ldy, float *dx, float *sum,
                               float *scratch, int64_t rows, int64_t width, float eps) {
    for (int64_t i = 0; i < rows; i++)
        norm_silu_row_backward(x + i * width, scale, dy + i * ldy, dx + i * width, sum, scratch, width, eps);
}

/* The backward pass of observe(). `m` has the weights packed for products with their transposes. ddeter, dprobs and dstoch
 * are the gradients of its outputs; `scratch` is [rows, 3 deter + 3 hidden + stoch * classes] and [threads, deter]. */
void observe_backward(const Model *m, const Trace *trace, const Gradients *grads, const float *keep,
                      const float *ddeter, const float *dprobs, const float *dstoch, float *scratch, int64_t steps,
                      int64_t threads) {
    int64_t M = m->rows, D = m->deter, N = m->hidden, K = m->blocks, d = D / K, S = m->stoch, C = m->classes, Z = S * C;
    float eps = (float)m->eps;
#pragma omp parallel for num_threads((int)threads) if (threads > 1)
    for (int64_t k = 0; k < threads; k++) {
        int64_t first = M * k / threads, rows = M * (k + 1) / threads - first;
        float *dh = scratch + first * (3 * D + 3 * N + Z); /* the gradient from the following step */
        float *dbefore = dh + rows * D, *drecurrent = dbefore + rows * D;
        float *dshared = drecurrent + rows * D, *dz = dshared + rows * 3 * N;
        float *row = scratch + M * (3 * D + 3 * N + Z) + k * D, *sum_recurrent = grads->recurrent_scale + k * D;
        float *sum_deter = grads->in_deter_scale + k * N, *sum_stoch = grads->in_stoch_scale + k * N;
        float *sum_head = grads->head_scale + k * N;
        memset(dh, 0, rows * D * sizeof(float));
        memset(dz, 0, rows * Z * sizeof(float));
        memset(sum_recurrent, 0, D * sizeof(float));
        memset(sum_deter, 0, N * sizeof(float));
        memset(sum_stoch, 0, N * sizeof(float));
        memset(sum_head, 0, N * sizeof(float));
        for (int64_t t = steps - 1; t >= 0; t--) {
            int64_t at = t * M + first;
            float *dlogits = grads->logits + at * Z, *dhead = grads->pre_head + at * N;
            float *dpre = grads->pre_recurrent + at * D, *dgates = grads->gates + at * 3 * D;
            for (int64_t j = 0; j < rows * Z; j++) dlogits[j] = dprobs[at * Z + j] + dstoch[at * Z + j] + dz[j];
            unimix_rows_backward(trace->probs + at * Z, dlogits, dlogits, rows * S, C, (float)m->unimix);
            memset(dhead, 0, rows * N * sizeof(float));
            multiply(dlogits, Z, m->logits, 0, 0, dhead, N, rows, Z, N);
            norm_rows_backward(trace->pre_head + at * N, m->head_scale, dhead, N, dhead, sum_head, row, rows, N, eps);
            for (int64_t j = 0; j < rows * D; j++) dh[j] += ddeter[at * D + j];
            multiply(dhead, N, m->head, 0, 0, dh, D, rows, N, D);
            for (int64_t i = 0; i < rows * K; i++)
                gru_row_backward(trace->gates + (at * K + i) * 3 * d, trace->before_deter + at * D + i * d,
                                 dh + i * d, dgates + i * 3 * d, dbefore + i * d, d);
            memset(drecurrent, 0, rows * D * sizeof(float));
            multiply_blocks(dgates, 3 * D, m->gates, 0, drecurrent, rows, K, 3 * d, d);
            norm_rows_backward(trace->pre_recurrent + at * D, m->recurrent_scale, drecurrent, D, dpre, sum_recurrent,
                               row, rows, D, eps);
            multiply_blocks(dpre, D, m->own, 0, dbefore, rows, K, d, d);
            memset(dshared, 0, rows * 3 * N * sizeof(float));
            multiply(dpre, D, m->shared, 0, 0, dshared, 3 * N, rows, D, 3 * N);
            norm_rows_backward(trace->pre_deter + at * N, m->in_deter_scale, dshared, 3 * N, grads->pre_deter + at * N,
                               sum_deter, row, rows, N, eps);
            norm_rows_backward(trace->pre_stoch + at * N, m->in_stoch_scale, dshared + N, 3 * N,
                               grads->pre_stoch + at * N, sum_stoch, row, rows, N, eps);
            for (int64_t i = 0; i < rows; i++)
                memcpy(grads->action + (at + i) * N, dshared + i * 3 * N + 2 * N, N * sizeof(float));
            multiply(grads->pre_deter + at * N, N, m->in_deter, 0, 0, dbefore, D, rows, N, D);
            memset(dz, 0, rows * Z * sizeof(float));
            multiply(grads->pre_stoch + at * N, N, m->in_stoch, 0, 0, dz, Z, rows, N, Z);
            masked(dbefore, keep + at, dh, rows, D);
            masked(dz, keep + at, dz, rows, Z);
        }
    }
}

#define STRIP 32 /* rows at once, so that the values between layers stay in the cache */

/* One step under the prior, whose two hidden layers are `head` and `second`, without a backward pass. `feature` and `next`
 * are [rows, deter + stoch * classes], h and z concatenated; `scratch` is
 * [threads, STRIP, 5 deter + 7 hidden + stoch * classes]. */
void imagine(const Model *m, const float *feature, const float *action, const float *uniform, float *next,
             float *scratch, int64_t threads) {
    int64_t M = m->rows, D = m->deter, N = m->hidden, S = m->stoch, Z = S * m->classes, F = D + Z;
    int64_t strips = (M + STRIP - 1) / STRIP, taken = 0;
    float eps = (float)m->eps;
#pragma omp parallel for num_threads((int)threads) if (threads > 1)
    for (int64_t k = 0; k < threads; k++) {
        float *own = scratch + k * STRIP * (5 * D + 7 * N + Z);
        Step s = {own, own + STRIP * N, own + STRIP * 2 * N, own + STRIP * 5 * N, own + STRIP * (5 * N + D),
                  own + STRIP * (5 * N + 2 * D)};
        float *pre = own + STRIP * (5 * N + 5 * D), *hidden = pre + STRIP * N, *probs = hidden + STRIP * N;
        for (int64_t strip = next_of(&taken); strip < strips; strip = next_of(&taken)) {
            int64_t first = strip * STRIP, rows = M - first < STRIP ? M - first : STRIP;
            const float *h = feature + first * F;
            float *out = next + first * F;
            sequence_step(m, h, F, h + D, F, action + first * N, s, out, F, rows);
            multiply(out, F, m->head, m->head_bias, 0, pre, N, rows, D, N);
            norm_rows(pre, m->head_scale, hidden, N, rows, N, eps);
            multiply(hidden, N, m->second, m->second_bias, 0, pre, N, rows, N, N);
            norm_rows(pre, m->second_scale, hidden, N, rows, N, eps);
            multiply(hidden, N, m->logits, m->logits_bias, 0, probs, Z, rows, N, Z);
            sample(m, probs, uniform + first * S, out + D, F, rows);
        }
    }
}

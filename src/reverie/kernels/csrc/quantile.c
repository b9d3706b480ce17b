/* Quantile regression: the loss over all pairs, none of which is ever stored, and the rest of QR-DQN's loss.
 *
 * objectives/quantile.py defines the computation, kernels/losses.py calls this. Arrays are contiguous and float32, flags
 * bytes.
 * With c the error u clipped to [-kappa, kappa], the Huber loss of u is c (u - c / 2) and its derivative c; without a
 * part that is a square, c is the sign of u and the loss c u. As c has the sign of u, sums over positive and over
 * negative errors follow from sums of c and of |c|, so that no pair has to be told apart.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"
#include "thread_pool.h"

enum { LANES = 16 }; /* predictions at once: their sums stay in registers */

/* NaN stays NaN. */
static inline float clipped(float u, float kappa) {
    float c = u > kappa ? kappa : u;
    return c < -kappa ? -kappa : c;
}

static inline float sign(float u) { return (float)(u > 0) - (float)(u < 0); }

/* Predictions `first` to `first` + `count` of n against m targets: returns their loss times m, and writes its gradient,
 * times `scale`. */
static inline __attribute__((always_inline)) float block(const float *theta, const float *y, float *grad, int64_t first,
                                                         int64_t count, int64_t n, int64_t m, float kappa, float scale,
                                                         const int square) {
    float t[LANES], sum[LANES] = {0}, size[LANES] = {0}, even[LANES] = {0}, odd[LANES] = {0}, total = 0;
    for (int64_t l = 0; l < LANES; l++) t[l] = theta[first + (l < count ? l : 0)];
    for (int64_t j = 0; j < m; j++) {
        float yj = y[j];
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float u = yj - t[l], c = square ? clipped(u, kappa) : sign(u), a = fabsf(c);
            float d = square ? fmaf(-0.5f, c, u) : u;
            sum[l] += c;
            size[l] += a;
            even[l] = fmaf(c, d, even[l]);
            odd[l] = fmaf(a, d, odd[l]);
        }
    }
    for (int64_t l = 0; l < count; l++) {
        float lean = ((float)(first + l) + 0.5f) / (float)n - 0.5f; /* tau^ - 1/2 */
        total += 0.5f * even[l] + lean * odd[l];
        grad[first + l] = -scale * (0.5f * sum[l] + lean * size[l]) / (float)m;
    }
    return total;
}

/* One distribution: returns its loss, and writes the gradient [n] times `scale`. */
static float distribution(const float *theta, const float *y, float *grad, int64_t n, int64_t m, float kappa,
                          float scale) {
    float total = 0;
    for (int64_t first = 0; first < n; first += LANES) {
        int64_t count = n - first < LANES ? n - first : LANES;
        if (kappa > 0)
            total += block(theta, y, grad, first, count, n, m, kappa, scale, 1);
        else
            total += block(theta, y, grad, first, count, n, m, kappa, scale, 0);
    }
    return total / (float)m;
}

typedef struct {
    const float *prediction, *target;
    float *loss, *grad, kappa;
    int64_t rows, n, m, taken;
} Pairs;

static void some_rows(void *given, Worker worker) {
    Pairs *c = given;
    int64_t n = c->n, m = c->m;
    (void)worker;
    for (int64_t r = next_piece(&c->taken); r < c->rows; r = next_piece(&c->taken))
        c->loss[r] = distribution(c->prediction + r * n, c->target + r * m, c->grad + r * n, n, m, c->kappa, 1.0f);
}

/* prediction [rows, n], target [rows, m] to loss [rows] and its gradient [rows, n]. */
void quantile_huber(const float *prediction, const float *target, float *loss, float *grad, int64_t rows, int64_t n,
                    int64_t m, float kappa, int threads) {
    Pairs c = {prediction, target, loss, grad, kappa, rows, n, m, 0};
    together(some_rows, &c, threads);
}

static float mean_of(const float *x, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum / (float)n;
}

/* For each row, the quantiles of the class whose `preferred` mean is highest: both [rows, classes, n] to [rows, n]. */
void best_quantiles(const float *quantiles, const float *preferred, float *out, int64_t rows, int64_t classes,
                    int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t best = 0;
        float highest = 0;
        for (int64_t a = 0; a < classes; a++) {
            float mean = mean_of(preferred + (r * classes + a) * n, n);
            if (a == 0 || mean > highest || (isnan(mean) && !isnan(highest))) {
                best = a;
                highest = mean;
            }
        }
        memcpy(out + r * n, quantiles + (r * classes + best) * n, (size_t)n * sizeof(float));
    }
}

/* Rewards of up to `steps` rows, then the distribution that is reached. `next` [windows, rows - 1, n] are those of rows
 * 1, 2, ..., flags and rewards [windows, rows]. Results for rows that are the last are not to be learned from. */
void quantile_targets(const float *next, const float *reward, const uint8_t *terminal, const uint8_t *last, float *y,
                      int64_t windows, int64_t rows, int64_t n, int64_t steps, float discount) {
    for (int64_t w = 0; w < windows; w++)
        for (int64_t t = 0; t + 1 < rows; t++) {
            const int64_t start = w * rows;
            int64_t at = t + 1;
            float sum = reward[start + at], live = discount;
            while (at - t < steps && at + 1 < rows && !last[start + at] && !terminal[start + at]) {
                sum += live * reward[start + ++at];
                live *= discount;
            }
            live = terminal[start + at] ? 0.0f : live;
            const float *from = next + (w * (rows - 1) + at - 1) * n;
            float *to = y + (w * (rows - 1) + t) * n;
            for (int64_t i = 0; i < n; i++) to[i] = sum + live * from[i];
        }
}

static int64_t chosen(const float *action, int64_t classes) {
    int64_t best = 0;
    for (int64_t a = 1; a < classes; a++) best = action[a] > action[best] ? a : best;
    return best;
}

typedef struct {
    const float *prediction, *action, *y, *weight;
    const uint8_t *last;
    float *gradient, *priority, *sums, kappa, each; /* each: what one row of the batch is in the mean */
    int64_t windows, steps, classes, n, taken;
} Errors;

static void window_error(const Errors *c, int64_t w) {
    int64_t held = 0, steps = c->steps, classes = c->classes, n = c->n;
    float loss = 0, predicted = 0, expected = 0, most[2] = {-INFINITY, -INFINITY};
    memset(c->gradient + w * steps * classes * n, 0, (size_t)(steps * classes * n) * sizeof(float));
    for (int64_t t = 0; t < steps; t++) {
        if (c->last[w * (steps + 1) + t]) continue;
        int64_t at = w * steps + t, class = chosen(c->action + (w * (steps + 1) + t) * classes, classes);
        const float *theta = c->prediction + (at * classes + class) * n;
        float *grad = c->gradient + (at * classes + class) * n;
        held++;
        loss += distribution(theta, c->y + at * n, grad, n, n, c->kappa, c->weight[w] * c->each);
        float value = mean_of(theta, n), target = mean_of(c->y + at * n, n);
        predicted += value;
        expected += target;
        most[0] = larger(most[0], value);
        most[1] = larger(most[1], target);
    }
    c->priority[w] = loss / (float)((held > 1 ? held : 1) * n);
    c->sums[w] = c->weight[w] * loss;
    c->sums[c->windows + w] = predicted;
    c->sums[2 * c->windows + w] = expected;
    c->sums[3 * c->windows + w] = most[0];
    c->sums[4 * c->windows + w] = most[1];
}

static void some_windows(void *given, Worker worker) {
    Errors *c = given;
    (void)worker;
    for (int64_t w = next_piece(&c->taken); w < c->windows; w = next_piece(&c->taken)) window_error(c, w);
}

/* The loss of QR-DQN, its gradient, priorities and metrics. prediction [windows, steps, classes, n], action [windows, steps +
 * 1, classes], y [windows, steps, n], last [windows, steps + 1], weight [windows]; to the gradient of the loss, the
 * priority of each window, and in `out` the loss, the mean and the largest prediction, and the mean and the largest
 * target. `sums` is [5, windows]. */
void quantile_error(const float *prediction, const float *action, const float *y, const uint8_t *last,
                    const float *weight, float *gradient, float *priority, float *sums, float *out, int64_t windows,
                    int64_t steps, int64_t classes, int64_t n, float kappa, int threads) {
    int64_t all = 0;
    for (int64_t w = 0; w < windows; w++)
        for (int64_t t = 0; t < steps; t++) all += !last[w * (steps + 1) + t];
    float each = 1.0f / (float)(all > 1 ? all : 1);
    Errors c = {prediction, action, y, weight, last, gradient, priority, sums, kappa, each, windows, steps, classes, n, 0};
    together(some_windows, &c, threads);
    for (int k = 0; k < 3; k++) { /* in the same order for any number of threads */
        double sum = 0;
        for (int64_t w = 0; w < windows; w++) sum += (double)sums[k * windows + w];
        out[k == 2 ? 3 : k] = (float)(sum * (double)each);
    }
    for (int k = 0; k < 2; k++) {
        float most = -INFINITY;
        for (int64_t w = 0; w < windows; w++) most = larger(most, sums[(3 + k) * windows + w]);
        out[2 + 2 * k] = all ? most : 0.0f;
    }
}

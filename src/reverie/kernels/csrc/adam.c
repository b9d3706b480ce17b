/* Updates of Adam and of target networks. */

#include <math.h>
#include <stdint.h>

#include "thread_pool.h"

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define CHUNK 4096

typedef struct {
    float *parameters, *mean, *square;
    const float *gradient;
    int64_t count, taken;
    float rate, root, beta1, beta2, eps, new1, new2;
} Moments;

static void adam_chunks(void *given, Worker worker) {
    Moments *m = given;
    (void)worker;
    for (int64_t at = CHUNK * next_piece(&m->taken); at < m->count; at = CHUNK * next_piece(&m->taken)) {
        int64_t end = least(m->count, at + CHUNK);
        float *p = m->parameters, *mean = m->mean, *square = m->square;
        const float *gradient = m->gradient;
        float rate = m->rate, root = m->root, beta1 = m->beta1, beta2 = m->beta2, eps = m->eps, new1 = m->new1, new2 = m->new2;
#pragma omp simd
        for (int64_t i = at; i < end; i++) {
            float g = gradient[i];
            mean[i] = beta1 * mean[i] + new1 * g;
            square[i] = beta2 * square[i] + new2 * g * g;
            p[i] -= rate * mean[i] / (sqrtf(square[i]) * root + eps);
        }
    }
}

/* Adam, Kingma and Ba 2015, Algorithm 1. `settings` are the rate, both betas, epsilon, and the number of updates over which
 * the rate decays to 0 along half a cosine (0: constant). `updates` already includes this update. */
void adam(float *parameters, const float *gradient, float *mean, float *square, int64_t count, const double *settings,
          const int64_t *updates, int64_t threads) {
    double rate = settings[0], beta1 = settings[1], beta2 = settings[2], cosine = settings[4], t = (double)*updates;
    if (cosine > 0) rate *= 0.5 + 0.5 * cos(3.14159265358979323846 * fmin(t - 1.0, cosine) / cosine);
    Moments m = {parameters, mean, square, gradient, count, 0,
                 (float)(rate / (1.0 - pow(beta1, t))), (float)(1.0 / sqrt(1.0 - pow(beta2, t))),
                 (float)beta1, (float)beta2, (float)settings[3], (float)(1.0 - beta1), (float)(1.0 - beta2)};
    together(adam_chunks, &m, threads);
}

typedef struct {
    float *slow;
    const float *fast;
    int64_t count, taken;
    float rate;
} Following;

static void polyak_chunks(void *given, Worker worker) {
    Following *f = given;
    (void)worker;
    for (int64_t at = CHUNK * next_piece(&f->taken); at < f->count; at = CHUNK * next_piece(&f->taken)) {
        int64_t end = least(f->count, at + CHUNK);
        float *slow = f->slow, rate = f->rate;
        const float *fast = f->fast;
#pragma omp simd
        for (int64_t i = at; i < end; i++) slow[i] += rate * (fast[i] - slow[i]);
    }
}

/* slow <- slow + rate (fast - slow); if `calls` is not null, only when it is a multiple of `every`. */
void polyak(float *slow, const float *fast, int64_t count, float rate, const int64_t *calls, int64_t every,
            int64_t threads) {
    Following f = {slow, fast, count, 0, rate};
    if (!calls || *calls % every == 0) together(polyak_chunks, &f, threads);
}

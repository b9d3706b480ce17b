/* Shared by the C files of this folder: exponentials that compilers can vectorize, and operations on single rows. */

#ifndef REVERIE_KERNELS_H
#define REVERIE_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The larger of two numbers; NaN if one of them is. */
static inline float larger(float x, float y) { return x > y || isnan(x) ? x : y; }

/* exp(r) - 1 for |r| <= ln(2) / 2, by the Taylor series, whose first omitted term is below 4e-9 r. */
static inline float expm1_small(float r) {
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    return fmaf(p, r * r, r);
}

/* Write x as n ln(2) + r; return r, and 2^n in `power`. x is clamped so that 2^n is a normal number. NaN stays NaN. */
static inline float reduce(float x, float *power) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504f);
    union { int32_t bits; float value; } two_to_n = {((int32_t)n + 127) << 23};
    *power = two_to_n.value;
    return fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, x)); /* ln(2) in two parts; n times the first part is exact */
}

static inline float fast_exp(float x) {
    float power, r = reduce(x, &power);
    return fmaf(power, expm1_small(r), power);
}

static inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

/* (exp(2x) - 1) / (exp(2x) + 1), without the cancellation of exp(2x) - 1 near 0. */
static inline float fast_tanh(float x) {
    float power, r = reduce(2.0f * x, &power);
    float e = fmaf(power, expm1_small(r), power - 1.0f);
    return x > 9.1f ? 1.0f : e / (e + 2.0f); /* 9.1: float32 has no number between tanh(x) and 1 */
}

static inline float inverse_rms(const float *x, int64_t width, float eps) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < width; j++) sum += x[j] * x[j];
    return 1.0f / sqrtf(sum / (float)width + eps);
}

/* The next piece of work. Threads take pieces one by one, so that a thread on a busy core takes fewer. */
static inline int64_t next_of(int64_t *taken) {
    int64_t next;
#pragma omp atomic capture
    next = (*taken)++;
    return next;
}

/* y = silu(scale x / rms(x)) */
static inline void norm_silu_row(const float *x, const float *scale, float *y, int64_t width, float eps) {
    float inverse = inverse_rms(x, width, eps);
#pragma omp simd
    for (int64_t j = 0; j < width; j++) {
        float u = x[j] * inverse * scale[j];
        y[j] = u * fast_sigmoid(u);
    }
}

/* Compute dx, and add the gradient of scale to dscale; d is scratch of the same width. dx may be dy. */
static inline void norm_silu_row_backward(const float *x, const float *scale, const float *dy, float *dx, float *dscale,
                                          float *d, int64_t width, float eps) {
    float inverse = inverse_rms(x, width, eps), mean = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t j = 0; j < width; j++) {
        float normed = x[j] * inverse, u = normed * scale[j], s = fast_sigmoid(u);
        float du = dy[j] * s * (1.0f + u * (1.0f - s));
        dscale[j] += du * normed;
        d[j] = du * scale[j];
        mean += d[j] * normed;
    }
    mean /= (float)width;
#pragma omp simd
    for (int64_t j = 0; j < width; j++) dx[j] = inverse * (d[j] - x[j] * inverse * mean);
}

/* h' = h + z (n - h), n = tanh(sigmoid(reset) candidate), z = sigmoid(update - 1); gates are [3, width]. */
static inline void gru_row(const float *gates, const float *h, float *next, int64_t width) {
    const float *reset = gates, *candidate = gates + width, *update = gates + 2 * width;
#pragma omp simd
    for (int64_t j = 0; j < width; j++) {
        float n = fast_tanh(fast_sigmoid(reset[j]) * candidate[j]), z = fast_sigmoid(update[j] - 1.0f);
        next[j] = h[j] + z * (n - h[j]);
    }
}

/* The gradients dgates [3, width] and dh [width]; dh may be dnext. */
static inline void gru_row_backward(const float *gates, const float *h, const float *dnext, float *dgates, float *dh,
                                    int64_t width) {
    const float *reset = gates, *candidate = gates + width, *update = gates + 2 * width;
#pragma omp simd
    for (int64_t j = 0; j < width; j++) {
        float r = fast_sigmoid(reset[j]), n = fast_tanh(r * candidate[j]), z = fast_sigmoid(update[j] - 1.0f);
        float g = dnext[j], inner = g * z * (1.0f - n * n); /* inner: the gradient of r * candidate */
        dgates[j] = inner * candidate[j] * r * (1.0f - r);
        dgates[width + j] = inner * r;
        dgates[2 * width + j] = g * (n - h[j]) * z * (1.0f - z);
        dh[j] = g * (1.0f - z);
    }
}

static inline float largest(const float *x, int64_t width) {
    float m = x[0];
    for (int64_t j = 1; j < width; j++) m = x[j] > m ? x[j] : m;
    return m;
}

/* p = (1 - mix) softmax(logits) + mix / width. The exponentials of all rows are computed together, as rows are short. */
static inline void unimix_rows(const float *logits, float *probs, int64_t rows, int64_t width, float mix) {
    for (int64_t i = 0; i < rows; i++) {
        float m = largest(logits + i * width, width);
        for (int64_t j = 0; j < width; j++) probs[i * width + j] = logits[i * width + j] - m;
    }
#pragma omp simd
    for (int64_t j = 0; j < rows * width; j++) probs[j] = fast_exp(probs[j]);
    for (int64_t i = 0; i < rows; i++) {
        float *p = probs + i * width, sum = 0;
        for (int64_t j = 0; j < width; j++) sum += p[j];
        float share = (1.0f - mix) / sum;
        for (int64_t j = 0; j < width; j++) p[j] = p[j] * share + mix / (float)width;
    }
}

/* With s = softmax(logits) and g = (1 - mix) dprobs: dlogits = s (g - sum_c g_c s_c). dlogits may be dprobs. */
static inline void unimix_rows_backward(const float *probs, const float *dprobs, float *dlogits, int64_t rows,
                                        int64_t width, float mix) {
    float keep = 1.0f - mix, floor = mix / (float)width;
    for (int64_t i = 0; i < rows; i++) {
        const float *p = probs + i * width, *g = dprobs + i * width;
        float *out = dlogits + i * width, inner = 0;
        for (int64_t j = 0; j < width; j++) inner += g[j] * (p[j] - floor);
        inner /= keep;
        for (int64_t j = 0; j < width; j++) out[j] = (p[j] - floor) * (g[j] - inner);
    }
}

/* Sample an index: the number of cumulative sums that are below `uniform` times the total. */
static inline int64_t draw_row(const float *probs, float uniform, int64_t width) {
    float total = 0, sum = 0;
    for (int64_t j = 0; j < width; j++) total += probs[j];
    int64_t below = 0;
    for (int64_t j = 0; j < width; j++) {
        sum += probs[j];
        below += sum < uniform * total;
    }
    return below;
}

#endif

/* Layer norm followed by Mish, or by a softmax over every few numbers (nn/functional.py: norm_mish, sim_norm): in PyTorch the
 * softmax over eight numbers takes longer than the linear layer before it. Arrays are as in kernels.c.
 */

#include "kernels.h"

static const float EPS = 1e-5f;

typedef struct {
    float mean, inverse; /* of a row, and of its standard deviation */
} Moments;

static inline Moments moments_of(const float *x, int64_t width) {
    float sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < width; j++) sum += x[j];
    float mean = sum / (float)width;
#pragma omp simd reduction(+ : square)
    for (int64_t j = 0; j < width; j++) square += (x[j] - mean) * (x[j] - mean);
    return (Moments){mean, 1.0f / sqrtf(square / (float)width + EPS)};
}

/* Mish(u) = u tanh(ln(1 + e)) = u n / (n + 2), where e = exp(u) and n = e (e + 2); above 20 it is u. */
static inline float mish(float u) {
    float e = fast_exp(u > 20.0f ? 20.0f : u), n = e * (e + 2.0f);
    return u * (n / (n + 2.0f));
}

static inline float mish_slope(float u) {
    float e = fast_exp(u > 20.0f ? 20.0f : u), n = e * (e + 2.0f), share = 1.0f / (n + 2.0f);
    return n * share + (u > 20.0f ? 0.0f : u * 4.0f * e * (e + 1.0f) * share * share);
}

void norm_mish(const float *x, const float *scale, const float *shift, float *y, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * width;
        Moments m = moments_of(row, width);
#pragma omp simd
        for (int64_t j = 0; j < width; j++) y[i * width + j] = mish((row[j] - m.mean) * m.inverse * scale[j] + shift[j]);
    }
}

/* Without `scale` there is no norm. */
void sim_norm(const float *x, const float *scale, const float *shift, float *y, int64_t rows, int64_t width, int64_t size,
              int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * width;
        float *out = y + i * width;
        Moments m = scale ? moments_of(row, width) : (Moments){0, 1};
#pragma omp simd
        for (int64_t j = 0; j < width; j++) out[j] = scale ? (row[j] - m.mean) * m.inverse * scale[j] + shift[j] : row[j];
        unimix_rows(out, out, width / size, size, 0.0f);
    }
}

/* From d, the gradient of the norm's result: dx, and the gradients of scale and shift, added to `sums` [2, width]. */
static inline void norm_row_backward(const float *x, const float *scale, float *d, float *dx, float *sums, int64_t width) {
    Moments m = moments_of(x, width);
    float mean = 0, along = 0, *dscale = sums, *dshift = sums + width;
#pragma omp simd reduction(+ : mean, along)
    for (int64_t j = 0; j < width; j++) {
        float normed = (x[j] - m.mean) * m.inverse;
        dscale[j] += d[j] * normed;
        dshift[j] += d[j];
        d[j] *= scale[j];
        mean += d[j];
        along += d[j] * normed;
    }
    mean /= (float)width, along /= (float)width;
#pragma omp simd
    for (int64_t j = 0; j < width; j++) dx[j] = m.inverse * (d[j] - mean - (x[j] - m.mean) * m.inverse * along);
}

/* dx, and each thread's part of the gradients of scale and shift, added to its rows of dnorm [threads, 2, width]. Without
 * `y` for norm_mish, otherwise for sim_norm, whose result is y. `scratch` is [threads, 3 * width]. */
void norm_then_backward(const float *x, const float *scale, const float *shift, const float *y, const float *dy, float *dx,
                        double *dnorm, float *scratch, int64_t rows, int64_t width, int64_t size, int threads) {
    const int64_t stretch = 512; /* rows summed in float32 before their sum is added in double */
    int64_t stretches = (rows + stretch - 1) / stretch;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t k = 0; k < threads; k++) {
        float *sums = scratch + k * 3 * width, *d = sums + 2 * width;
        for (int64_t s = stretches * k / threads; s < stretches * (k + 1) / threads; s++) {
            int64_t end = (s + 1) * stretch < rows ? (s + 1) * stretch : rows;
            memset(sums, 0, 2 * width * sizeof(float));
            for (int64_t i = s * stretch; i < end; i++) {
                const float *row = x + i * width, *grad = dy + i * width;
                if (y) {
                    unimix_rows_backward(y + i * width, grad, scale ? d : dx + i * width, width / size, size, 0.0f);
                } else {
                    Moments m = moments_of(row, width);
#pragma omp simd
                    for (int64_t j = 0; j < width; j++)
                        d[j] = grad[j] * mish_slope((row[j] - m.mean) * m.inverse * scale[j] + shift[j]);
                }
                if (scale) norm_row_backward(row, scale, d, dx + i * width, sums, width);
            }
            for (int64_t j = 0; dnorm && j < 2 * width; j++) dnorm[k * 2 * width + j] += (double)sums[j];
        }
    }
}

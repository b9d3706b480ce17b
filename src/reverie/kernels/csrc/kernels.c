/* Fused element-wise operations for CPUs: each reads its inputs once and writes its outputs once.
 *
 * compiler.py compiles this file for the present machine. nn/functional.py defines every function in PyTorch; the tests
 * compare the two. All arrays are float32, contiguous and have at least one row. `width` is the size of the last axis,
 * `rows` the product of all others.
 */

#include "kernels.h"

/* The row of [images, 2 h, 2 w] pixels to which row i of [images, h, w, 2, 2] pixels belongs; i itself if h is 0. */
static inline int64_t place(int64_t i, int64_t h, int64_t w) {
    if (h == 0) return i;
    int64_t odd_column = i & 1, odd_row = (i >> 1) & 1, pixel = i >> 2;
    int64_t column = pixel % w, row = pixel / w; /* counted over all images */
    return (2 * row + odd_row) * 2 * w + 2 * column + odd_column;
}

/* y = silu(scale x / rms(x)) */
void norm_silu(const float *x, const float *scale, float *y, int64_t rows, int64_t width, int64_t h, int64_t w,
               float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) norm_silu_row(x + i * width, scale, y + place(i, h, w) * width, width, eps);
}

/* dx, and each thread's part of the gradient of scale, added to its row of dscale [threads, width]: a sum over threads in
 * the order in which they end would not be reproducible. `scratch` is [threads, 2 * width]. */
void norm_silu_backward(const float *x, const float *scale, const float *dy, float *dx, double *dscale, float *scratch,
                        int64_t rows, int64_t width, int64_t h, int64_t w, float eps, int threads) {
    const int64_t stretch = 512; /* rows summed in float32 before their sum is added in double */
    int64_t stretches = (rows + stretch - 1) / stretch;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t k = 0; k < threads; k++) {
        float *sum = scratch + k * 2 * width, *d = sum + width;
        for (int64_t s = stretches * k / threads; s < stretches * (k + 1) / threads; s++) {
            int64_t end = (s + 1) * stretch < rows ? (s + 1) * stretch : rows;
            memset(sum, 0, width * sizeof(float));
            for (int64_t i = s * stretch; i < end; i++)
                norm_silu_row_backward(x + i * width, scale, dy + place(i, h, w) * width, dx + i * width, sum, d, width,
                                       eps);
            for (int64_t j = 0; j < width; j++) dscale[k * width + j] += (double)sum[j];
        }
    }
}

/* A cheap hash of up to 16 numbers of each array, evenly spread, to detect changes. */
void sample_bits(const uint32_t *const *arrays, const int64_t *sizes, int64_t count, uint64_t *out) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t picks = sizes[i] < 16 ? sizes[i] : 16;
        for (int64_t k = 0; k < picks; k++) hash = (hash ^ arrays[i][k * sizes[i] / picks]) * 0x100000001b3u;
    }
    *out = hash;
}

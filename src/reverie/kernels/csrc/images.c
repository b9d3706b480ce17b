/* The operations after the encoder's convolutions, for CPUs. kernels/images.py calls them; images are float32
 * [images, height, width, channels], contiguous.
 */

#include "kernels.h"

/* ------------------------------------------------------------------ pooling */

/* The larger number; NaN if one of them is NaN. */
static inline float most(float a, float b) {
    float m = a < b ? b : a;
    return b != b ? b : m;
}

/* The maximum of four pixels in each channel, and which pixel it is: the first one if several are equal. */
static void pool_pixel(const float *a, const float *b, const float *c, const float *d, float *restrict pooled,
                       uint8_t *restrict which, int64_t width) {
    for (int64_t j = 0; j < width; j++) {
        float upper = most(a[j], b[j]), lower = most(c[j], d[j]);
        int32_t right = a[j] < b[j], lower_right = c[j] < d[j];
        pooled[j] = most(upper, lower);
        which[j] = (uint8_t)(upper < lower ? 2 + lower_right : right);
    }
}

/* Pool y 2 x 2, then out = silu(scale pooled / rms(pooled)). An odd last row or column is repeated. `which` is the position
 * of each maximum: 2 * row + column. */
void pool_norm_silu(const float *y, const float *scale, float *pooled, uint8_t *which, float *out, int64_t images,
                    int64_t height, int64_t width, int64_t channels, float eps, int threads) {
    int64_t rows = (height + 1) / 2, columns = (width + 1) / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < images * rows; i++) {
        int64_t row = i % rows * 2, first = i * columns * channels;
        const float *upper = y + (i / rows * height + row) * width * channels;
        const float *lower = row + 1 < height ? upper + width * channels : upper;
        for (int64_t j = 0; j < columns; j++) {
            int64_t left = 2 * j * channels, right = 2 * j + 1 < width ? left + channels : left;
            pool_pixel(upper + left, upper + right, lower + left, lower + right, pooled + first + j * channels,
                       which + first + j * channels, channels);
        }
        for (int64_t j = first; j < first + columns * channels; j += channels)
            norm_silu_row(pooled + j, scale, out + j, channels, eps);
    }
}

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

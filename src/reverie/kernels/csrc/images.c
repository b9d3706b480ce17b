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

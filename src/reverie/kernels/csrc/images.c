/* The operations between the convolutions of encoder and decoder, and the error of images, for CPUs. kernels/images.py,
 * kernels/upsample.py and kernels/images.py call these functions and define them in PyTorch. Images are float32
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

/* Pool y 2 x 2, then out = silu(scale pooled / rms(pooled)). An odd last row or column is repeated. `which` is the place
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

/* ------------------------------------------------------------------ pixels */

/* The sigmoid of [images, h, w, 2, 2, channels], four pixels for each place, rearranged to [images, 2 h, 2 w, channels];
 * `rows` is images * h. */
void unfold_sigmoid(const float *y, float *image, int64_t rows, int64_t w, int64_t channels, int threads) {
    int64_t pair = 2 * channels;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < 2 * rows; i++) {
        const float *from = y + i / 2 * 2 * w * pair + i % 2 * pair;
        float *to = image + i * w * pair;
        for (int64_t j = 0; j < w; j++)
            for (int64_t k = 0; k < pair; k++) to[j * pair + k] = from[j * 2 * pair + k];
#pragma omp simd
        for (int64_t j = 0; j < w * pair; j++) to[j] = fast_sigmoid(to[j]);
    }
}

void unfold_sigmoid_backward(const float *image, const float *dimage, float *dy, int64_t rows, int64_t w,
                             int64_t channels, int threads) {
    int64_t pair = 2 * channels;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < 2 * rows; i++) {
        const float *p = image + i * w * pair, *g = dimage + i * w * pair;
        float *to = dy + i / 2 * 2 * w * pair + i % 2 * pair;
        for (int64_t j = 0; j < w; j++, p += pair, g += pair, to += 2 * pair)
            for (int64_t k = 0; k < pair; k++) to[k] = g[k] * p[k] * (1.0f - p[k]);
    }
}

/* sum_j (x_j - (target_j - low) / range)^2 of each row. */
void squared_error(const float *x, const uint8_t *target, float *out, int64_t rows, int64_t width, float low,
                   float range, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < width; j++) {
            float error = x[i * width + j] - ((float)target[i * width + j] - low) / range;
            sum += error * error;
        }
        out[i] = sum;
    }
}

void squared_error_backward(const float *x, const uint8_t *target, const float *dout, float *dx, int64_t rows,
                            int64_t width, float low, float range, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) {
        float twice = 2.0f * dout[i];
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
            dx[i * width + j] = twice * (x[i * width + j] - ((float)target[i * width + j] - low) / range);
    }
}

/* Winograd's minimal filtering (Lavin and Gray 2016): transforms of a row of pixels, and products at a point. */

#ifndef REVERIE_POINTS_H
#define REVERIE_POINTS_H

#include "kernels.h"
#include "lanes.h"

enum {
    FULL = 16,  /* channels and outputs are padded to multiples of this */
    TILES = 24, /* tiles that are multiplied together: a multiple of the rows of every product below */
    PANEL = 4   /* vectors of outputs in the widest product */
};

#define INLINE static inline __attribute__((always_inline)) /* so that sizes given as constants are constants */

/* Transform six pixels x[0], x[step], ... to the points 0, 1, -1, 2, -2 and infinity. */
INLINE void to_six_points(lanes *x, const int step) {
    lanes x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step], x4 = x[4 * step], x5 = x[5 * step];
    lanes even1 = x4 - 4 * x2, odd1 = x3 - 4 * x1; /* the values at 1 and -1 (2 and -2): the sum and the difference */
    lanes even2 = x4 - x2, odd2 = 2 * (x3 - x1);
    x[0] = 4 * x0 - 5 * x2 + x4;
    x[step] = even1 + odd1, x[2 * step] = even1 - odd1;
    x[3 * step] = even2 + odd2, x[4 * step] = even2 - odd2;
    x[5 * step] = 4 * x1 - 5 * x3 + x5;
}

/* m = v u, for TILES rows, `rows` at a time, and `width` vectors of outputs. */
INLINE void multiply(const float *v, const float *u, float *m, int64_t in, int64_t out, int64_t channels, const int rows,
                     const int width) {
    for (int64_t t = 0; t < TILES; t += rows, v += rows * in, m += rows * out) {
        lanes sum[TILES], w[PANEL];
        for (int i = 0; i < rows * width; i++) sum[i] = (lanes){0};
        for (int64_t c = 0; c < channels; c++) {
            for (int j = 0; j < width; j++) w[j] = *(const lanes *)(u + c * out + j * LANES);
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < width; j++) sum[i * width + j] += v[i * in + c] * w[j];
        }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < width; j++) *(lanes *)(m + i * out + j * LANES) = sum[i * width + j];
    }
}

/* m [TILES, out] = v [TILES, in] u [channels, out], in products that fill the registers. */
INLINE void multiply_point(const float *v, const float *u, float *m, int64_t in, int64_t out, int64_t channels) {
    int64_t k = 0;
#ifdef __AVX512F__
    for (; out - k >= 4 * LANES; k += 4 * LANES) multiply(v, u + k, m + k, in, out, channels, 6, 4);
    int64_t left = (out - k) / LANES;
    if (left == 3) multiply(v, u + k, m + k, in, out, channels, 8, 3);
    if (left == 2) multiply(v, u + k, m + k, in, out, channels, 12, 2);
    if (left == 1) multiply(v, u + k, m + k, in, out, channels, 24, 1);
#else
    for (; k < out; k += 2 * LANES) multiply(v, u + k, m + k, in, out, channels, 6, 2);
#endif
}

#endif

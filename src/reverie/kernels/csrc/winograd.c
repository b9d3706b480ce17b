/* Convolutions of 3 x 3 and 5 x 5 with a quarter and a sixth of the multiplications, for kernels/images.py.
 *
 * Winograd's minimal filtering (Lavin and Gray 2016): a tile of n x n pixels, n = kernel + 3, is transformed to n x n
 * points. There the convolution is one product for each channel, and the sums over channels are transformed back to
 * 4 x 4 outputs. The points are values of polynomials at 0, 1, -1, 2, -2 and infinity, for 5 x 5 also at 1/2 and -1/2.
 *
 * Images are float32 [images, h, w, channels], contiguous, and keep their height and width.
 */

#include "winograd.h"

enum {
    SIDE = 4, /* outputs in a row of a tile */
    MOST = 8  /* pixels in a row of the largest tile */
};

typedef struct {
    int64_t h, w, channels, outputs;
    int64_t in, out;     /* padded channels and outputs */
    int64_t down, right; /* tiles in a column and a row of an image */
} Sizes;

/* ------------------------------------------------------------------ to the points and back */

/* Transform n pixels x[0], x[step], ... to their n points. */
INLINE void to_points(lanes *x, const int n, const int step) {
    if (n == 6) {
        to_six_points(x, step);
        return;
    }
    lanes x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step], x4 = x[4 * step], x5 = x[5 * step];
    lanes x6 = x[6 * step], x7 = x[7 * step];
    lanes even1 = x2 - 4.25f * x4 + x6, odd1 = x1 - 4.25f * x3 + x5;
    lanes even2 = 0.25f * x2 - 1.25f * x4 + x6, odd2 = 0.5f * x1 - 2.5f * x3 + 2 * x5;
    lanes even3 = 4 * x2 - 5 * x4 + x6, odd3 = 2 * x1 - 2.5f * x3 + 0.5f * x5;
    x[0] = x0 - x6 + 5.25f * (x4 - x2);
    x[step] = even1 + odd1, x[2 * step] = even1 - odd1;
    x[3 * step] = even2 + odd2, x[4 * step] = even2 - odd2;
    x[5 * step] = even3 + odd3, x[6 * step] = even3 - odd3;
    x[7 * step] = x7 - x1 + 5.25f * (x3 - x5);
}

/* Transform n points m[0], m[step], ... to four outputs y[0], y[next], ... */
INLINE void from_points(const lanes *m, lanes *y, const int n, const int step, const int next) {
    lanes sum1 = m[step] + m[2 * step], less1 = m[step] - m[2 * step];
    lanes sum2 = m[3 * step] + m[4 * step], less2 = m[3 * step] - m[4 * step];
    y[0] = m[0] + sum1 + sum2;
    y[next] = less1 + 2 * less2;
    y[2 * next] = sum1 + 4 * sum2;
    y[3 * next] = less1 + 8 * less2 + m[(n - 1) * step];
    if (n == 8) {
        lanes sum3 = m[5 * step] + m[6 * step], less3 = m[5 * step] - m[6 * step];
        y[0] += sum3;
        y[next] += 0.5f * less3;
        y[2 * next] += 0.25f * sum3;
        y[3 * next] += 0.125f * less3;
    }
}

/* Load the vector at p, of which only the first `count` numbers exist; the others are 0. */
INLINE lanes load(const float *p, int64_t count) {
    lanes x = {0};
    if (count >= LANES) return *(const lanes *)p;
    memcpy(&x, p, count * sizeof(float));
    return x;
}

INLINE void store(float *p, lanes x, int64_t count) {
    if (count >= LANES)
        *(lanes *)p = x;
    else
        memcpy(p, &x, count * sizeof(float));
}

/* Transform the tile that begins at pixel (row, column), zero beyond the border, to v[point * stride + channel]. */
INLINE void tile_to_points(const Sizes *s, const float *x, int64_t row, int64_t column, float *v, int64_t stride,
                           const int n) {
    for (int64_t c = 0; c < s->channels; c += LANES) {
        lanes d[MOST * MOST];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                int64_t at = row + i, to = column + j;
                int inside = at >= 0 && at < s->h && to >= 0 && to < s->w;
                d[i * n + j] = inside ? load(x + (at * s->w + to) * s->channels + c, s->channels - c) : (lanes){0};
            }
        for (int j = 0; j < n; j++) to_points(d + j, n, n);
        for (int i = 0; i < n; i++) to_points(d + i * n, n, 1);
        for (int p = 0; p < n * n; p++) *(lanes *)(v + p * stride + c) = d[p];
    }
}

/* Transform points m[point * stride + output] to the tile of y at (row, column), as far as it is in the image. */
INLINE void tile_from_points(const Sizes *s, const float *m, int64_t stride, const float *bias, float *y, int64_t row,
                             int64_t column, const int n) {
    for (int64_t k = 0; k < s->outputs; k += LANES) {
        lanes d[MOST * MOST], half[SIDE * MOST], tile[SIDE * SIDE], base = *(const lanes *)(bias + k);
        for (int p = 0; p < n * n; p++) d[p] = *(const lanes *)(m + p * stride + k);
        for (int j = 0; j < n; j++) from_points(d + j, half + j, n, n, n);
        for (int i = 0; i < SIDE; i++) from_points(half + i * n, tile + i * SIDE, n, 1, 1);
        for (int i = 0; i < SIDE && row + i < s->h; i++)
            for (int j = 0; j < SIDE && column + j < s->w; j++) {
                float *to = y + ((row + i) * s->w + column + j) * s->outputs + k;
                store(to, tile[i * SIDE + j] + base, s->outputs - k);
            }
    }
}

INLINE void tiles(const Sizes *s, const float *x, const float *u, const float *bias, float *y, float *v, float *m,
                  int64_t first, int64_t count, const int n) {
    int64_t of_v = TILES * s->in + FULL, of_m = TILES * s->out + FULL, each = s->down * s->right;
    for (int64_t t = 0; t < count; t++) {
        int64_t image = (first + t) / each, row = (first + t) % each / s->right, column = (first + t) % s->right;
        const float *from = x + image * s->h * s->w * s->channels;
        int reach = (n - SIDE) / 2;
        tile_to_points(s, from, row * SIDE - reach, column * SIDE - reach, v + t * s->in, of_v, n);
    }
    for (int p = 0; p < n * n; p++)
        multiply_point(v + p * of_v, u + p * s->channels * s->out, m + p * of_m, s->in, s->out, s->channels);
    for (int64_t t = 0; t < count; t++) {
        int64_t image = (first + t) / each, row = (first + t) % each / s->right, column = (first + t) % s->right;
        float *to = y + image * s->h * s->w * s->outputs;
        tile_from_points(s, m + t * s->out, of_m, bias, to, row * SIDE, column * SIDE, n);
    }
}

/* Convolve x to y. The weights' points u are [n * n, channels, out], the bias is [out]; kernel is 3 or 5. `scratch` is
 * [threads, size], filled with zeros: for each point [TILES, in] and [TILES, out], each followed by FULL numbers. */
void winograd(const float *x, const float *u, const float *bias, float *y, float *scratch, int64_t size,
              int64_t images, int64_t h, int64_t w, int64_t channels, int64_t outputs, int64_t kernel, int threads) {
    Sizes s = {.h = h, .w = w, .channels = channels, .outputs = outputs};
    s.in = (channels + FULL - 1) / FULL * FULL, s.out = (outputs + FULL - 1) / FULL * FULL;
    s.down = (h + SIDE - 1) / SIDE, s.right = (w + SIDE - 1) / SIDE;
    int64_t n = kernel + SIDE - 1, all = images * s.down * s.right, groups = (all + TILES - 1) / TILES, taken = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        float *v = scratch + t * size, *m = v + n * n * (TILES * s.in + FULL);
        for (int64_t g = next_of(&taken); g < groups; g = next_of(&taken)) {
            int64_t first = g * TILES, count = all - first < TILES ? all - first : TILES;
            if (n == 6)
                tiles(&s, x, u, bias, y, v, m, first, count, 6);
            else
                tiles(&s, x, u, bias, y, v, m, first, count, 8);
        }
    }
}

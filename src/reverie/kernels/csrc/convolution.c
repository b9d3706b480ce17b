/* Convolutions without padding whose stride divides the kernel, or of 3 x 3 with stride 1, for kernels/conv_relu.py.
 *
 * Blocks of stride x stride pixels are the cells of a grid. A convolution of kernel k and stride s has kernel k / s and
 * stride 1 over cells, whose rows are s segments of memory. Where n = k / s is 2 or 3, Winograd's minimal
 * filtering with p points (0, 1, -1, 2, -2 and infinity, or some of them) computes tiles of p - n + 1 cells: for n = 2,
 * 5 x 5 cells with 36 products instead of 100, or 3 x 3 with 16 instead of 36; for n = 3, 4 x 4 with 36 instead of 144, or
 * 3 x 3 with 25 instead of 81. Gradients are the transposes.
 *
 * A grid is uint8 or float32; its segments have their own gaps, so that images need no copy.
 */

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "points.h"

enum { MOST = 6, LARGEST = 5 }; /* points, and cells of a side */

/* A grid of cells, as kernels/conv_relu.py writes it. */
typedef struct {
    int64_t h, w;           /* cells */
    int64_t segments, each; /* segments of a cell, and numbers in one */
    int64_t row, image;     /* numbers from one row of pixels to the next, and from one image to the next */
    int64_t width;          /* numbers of a cell, whole vectors */
    int64_t numbers;        /* of all images */
} Grid;

typedef int32_t ints __attribute__((vector_size(LANES * sizeof(float)), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE lanes load_any(const void *x, int64_t at, const int is_bytes) {
    if (!is_bytes) return *(const lanes *)((const float *)x + at);
    const uint8_t *from = (const uint8_t *)x + at;
#if defined(__AVX512F__) /* compilers convert one number at a time */
    return (lanes)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__)
    return (lanes)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    return __builtin_convertvector(__builtin_convertvector(*(const bytes *)from, ints), lanes);
#endif
}

/* Load as many numbers as there are. */
INLINE lanes load_last(const void *x, int64_t at, int64_t numbers, const int is_bytes) {
    if (at + LANES <= numbers) return load_any(x, at, is_bytes);
    const int64_t size = is_bytes ? 1 : sizeof(float);
    float some[LANES] = {0};
    memcpy(some, (const char *)x + at * size, (numbers - at) * size);
    return load_any(some, 0, is_bytes);
}

/* Transform the pixels x[0], x[step], ... to as many points. */
INLINE void to_points(lanes *x, const int step, const int points) {
    if (points == 6) {
        to_six_points(x, step);
        return;
    }
    lanes x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step];
    if (points == 4) {
        x[0] = x0 - x2, x[step] = x1 + x2, x[2 * step] = x2 - x1, x[3 * step] = x3 - x1;
        return;
    }
    lanes last = x[4 * step] - x2;
    x[0] = 2 * (x0 - x2) + x3 - x1;
    x[step] = x3 - x2 - 2 * x1;
    x[2 * step] = x3 - 3 * x2 + 2 * x1;
    x[3 * step] = x3 - x1;
    x[4 * step] = last - 2 * (x3 - x1);
}

/* Transform the tile that begins at cell (row, column), zero beyond the border, to v[point * stride + number]. Where a
 * segment is not whole vectors, the next one takes the place of what is read beyond it. */
INLINE void read_tile(const Grid *g, const void *x, int64_t base, int64_t row, int64_t column, float *v, int64_t stride,
                      const int is_bytes, const int points) {
    int whole = row >= 0 && column >= 0 && row + points <= g->h && column + points <= g->w;
    int64_t bottom = base + (row + points) * g->segments * g->row;
    whole = whole && (g->each % LANES == 0 || bottom < g->numbers);
    for (int64_t s = 0; s < g->segments; s++)
        for (int64_t c = 0; c < g->each; c += LANES) {
            lanes d[MOST * MOST];
            int64_t from = base + (row * g->segments + s) * g->row + column * g->each + c;
            for (int i = 0; i < points; i++, from += g->segments * g->row)
                for (int j = 0; j < points; j++) {
                    int inside = row + i >= 0 && row + i < g->h && column + j >= 0 && column + j < g->w;
                    int64_t at = from + j * g->each;
                    d[i * points + j] = whole ? load_any(x, at, is_bytes) : inside ? load_last(x, at, g->numbers, is_bytes) : (lanes){0};
                }
            for (int j = 0; j < points; j++) to_points(d + j, points, points);
            for (int i = 0; i < points; i++) to_points(d + i * points, 1, points);
            float *to = v + s * g->each + c;
            for (int p = 0; p < points * points; p++) *(lanes *)(to + p * stride) = d[p];
        }
}

/* Transform the points m[0], m[step], ... to `side` outputs y[0], y[next], ... */
INLINE void from_points(const lanes *m, lanes *y, const int side, const int points, const int step, const int next) {
    lanes m3 = {0}, m4 = {0};
    if (points > 4) m3 = m[3 * step];
    if (points > 5) m4 = m[4 * step];
    lanes sum1 = m[step] + m[2 * step], less1 = m[step] - m[2 * step], sum2 = m3 + m4, less2 = m3 - m4;
    y[0] = m[0] + sum1 + sum2;
    y[next] = less1 + 2 * less2;
    y[2 * next] = sum1 + 4 * sum2;
    if (side > 3) y[3 * next] = less1 + 8 * less2;
    if (side > 4) y[4 * next] = sum1 + 16 * sum2;
    y[(side - 1) * next] += m[(points - 1) * step];
}

/* The transpose of from_points. */
INLINE void spread_to_points(const lanes *y, lanes *m, const int side, const int points, const int next, const int step) {
    lanes y3 = side > 3 ? y[3 * next] : (lanes){0}, y4 = side > 4 ? y[4 * next] : (lanes){0};
    lanes even1 = y[0] + y[2 * next] + y4, odd1 = y[next] + y3;
    lanes even2 = y[0] + 4 * y[2 * next] + 16 * y4, odd2 = 2 * y[next] + 8 * y3;
    m[0] = y[0];
    m[step] = even1 + odd1, m[2 * step] = even1 - odd1;
    if (points > 4) m[3 * step] = even2 + odd2;
    if (points > 5) m[4 * step] = even2 - odd2;
    m[(points - 1) * step] = y[(side - 1) * next];
}

/* Transform points m[point * stride + number] to the tile at (row, column), as far as it is in the grid. */
INLINE void write_tile(const Grid *g, const float *m, int64_t stride, const float *bias, float *y, int64_t row,
                       int64_t column, const int side, const int points, const int relu) {
    for (int64_t s = 0; s < g->segments; s++)
        for (int64_t k = 0; k < g->each; k += LANES) {
            int64_t number = s * g->each + k;
            lanes d[MOST * MOST], half[LARGEST * MOST], tile[LARGEST * LARGEST], zero = {0};
            lanes base = bias ? *(const lanes *)(bias + number) : zero;
            for (int p = 0; p < points * points; p++) d[p] = *(const lanes *)(m + p * stride + number);
            for (int j = 0; j < points; j++) from_points(d + j, half + j, side, points, points, points);
            for (int i = 0; i < side; i++) from_points(half + i * points, tile + i * side, side, points, 1, 1);
            for (int i = 0; i < side && row + i < g->h; i++)
                for (int j = 0; j < side && column + j < g->w; j++) {
                    lanes z = tile[i * side + j] + base;
                    if (relu) z = (lanes)((ints)z & ~(z < zero)); /* NaN stays NaN */
                    *(lanes *)(y + ((row + i) * g->segments + s) * g->row + (column + j) * g->each + k) = z;
                }
        }
}

/* Transform the gradient of the tile at (row, column) to d[point * stride + number]. */
INLINE void read_gradient(const Grid *g, const float *y, int64_t row, int64_t column, float *to, int64_t stride,
                          const int side, const int points) {
    for (int64_t k = 0; k < g->each; k += LANES) {
        lanes d[MOST * MOST], half[MOST * LARGEST], tile[LARGEST * LARGEST];
        for (int i = 0; i < side; i++)
            for (int j = 0; j < side; j++) {
                int inside = row + i < g->h && column + j < g->w;
                const float *from = y + (row + i) * g->row + (column + j) * g->each + k;
                tile[i * side + j] = inside ? *(const lanes *)from : (lanes){0};
            }
        for (int j = 0; j < side; j++) spread_to_points(tile + j, half + j, side, points, side, side);
        for (int i = 0; i < points; i++) spread_to_points(half + i * side, d + i * points, side, points, 1, 1);
        for (int p = 0; p < points * points; p++) *(lanes *)(to + p * stride + k) = d[p];
    }
}

typedef struct {
    int64_t image, row, column;
} Place;

INLINE Place place_of(int64_t tile, int64_t down, int64_t right, const int side) {
    int64_t within = tile % (down * right);
    return (Place){tile / (down * right), within / right * side, within % right * side};
}

INLINE void convolve_tiles(const Grid *in, const Grid *out, const void *x, const float *u, const float *bias, float *y,
                           float *v, float *m, int64_t offset, int64_t first, int64_t count, const int is_bytes,
                           const int side, const int points, const int relu) {
    int64_t of_v = TILES * in->width + FULL, of_m = TILES * out->width + FULL;
    int64_t down = (out->h + side - 1) / side, right = (out->w + side - 1) / side;
    for (int64_t t = 0; t < count; t++) {
        Place p = place_of(first + t, down, right, side);
        read_tile(in, x, p.image * in->image, p.row + offset, p.column + offset, v + t * in->width, of_v, is_bytes,
                  points);
    }
    for (int p = 0; p < points * points; p++)
        multiply_point(v + p * of_v, u + p * in->width * out->width, m + p * of_m, in->width, out->width, in->width);
    for (int64_t t = 0; t < count; t++) {
        Place p = place_of(first + t, down, right, side);
        write_tile(out, m + t * out->width, of_m, bias, y + p.image * out->image, p.row, p.column, side, points, relu);
    }
}

/* What both passes are compiled for: bytes or floats, cells along a side of the kernel, and points of a tile. */
#define TILINGS CASE(1, 5, 6); CASE(1, 3, 4); CASE(0, 5, 6); CASE(0, 3, 4); CASE(0, 4, 6); CASE(0, 3, 5);

/* Convolve the grid x to the grid y, from `offset` cells on, in tiles of `side` cells with so many points. The
 * weights' points u are [points^2, in width, out width], the bias [out width] or null. `scratch` is [threads, size]: for each point
 * [TILES, in width] and [TILES, out width], each followed by FULL numbers. */
void convolve_cells(const void *x, int is_bytes, const void *grids, const float *u, const float *bias, float *y,
                    float *scratch, int64_t size, int64_t images, int64_t offset, int side, int points, int relu,
                    int threads) {
    const Grid *in = grids, *out = in + 1;
    int64_t down = (out->h + side - 1) / side, right = (out->w + side - 1) / side, all = images * down * right;
    int64_t groups = (all + TILES - 1) / TILES, taken = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        float *v = scratch + t * size, *m = v + points * points * (TILES * in->width + FULL);
        for (int64_t g = next_of(&taken); g < groups; g = next_of(&taken)) {
            int64_t first = g * TILES, count = all - first < TILES ? all - first : TILES;
#define CASE(bytes, cells, p)                                   \
    if (is_bytes == bytes && side == cells && points == p)      \
    convolve_tiles(in, out, x, u, bias, y, v, m, offset, first, count, bytes, cells, p, relu)
            TILINGS
#undef CASE
        }
    }
}

/* Add v^T d to du, `rows` numbers of a cell and `width` vectors of outputs at a time. */
INLINE void add_products(const float *v, const float *d, float *du, int64_t in, int64_t out, int64_t count,
                         const int rows, const int width) {
    for (int64_t c = 0; c < in; c += rows)
        for (int64_t k = 0; k < out; k += width * LANES) {
            lanes sum[16];
            float *to = du + c * out + k;
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < width; j++) sum[i * width + j] = *(const lanes *)(to + i * out + j * LANES);
            for (int64_t t = 0; t < count; t++) {
                lanes w[PANEL];
                for (int j = 0; j < width; j++) w[j] = *(const lanes *)(d + t * out + k + j * LANES);
                for (int i = 0; i < rows; i++)
                    for (int j = 0; j < width; j++) sum[i * width + j] += v[t * in + c + i] * w[j];
            }
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < width; j++) *(lanes *)(to + i * out + j * LANES) = sum[i * width + j];
        }
}

INLINE void add_weight_tiles(const Grid *in, const Grid *out, const void *x, const float *dy, float *du, float *v,
                             float *d, int64_t first, int64_t count, const int is_bytes, const int side,
                             const int points) {
    int64_t of_v = TILES * in->width + FULL, of_d = TILES * out->width + FULL;
    int64_t down = (out->h + side - 1) / side, right = (out->w + side - 1) / side;
    for (int64_t t = 0; t < count; t++) {
        Place p = place_of(first + t, down, right, side);
        read_tile(in, x, p.image * in->image, p.row, p.column, v + t * in->width, of_v, is_bytes, points);
        read_gradient(out, dy + p.image * out->image, p.row, p.column, d + t * out->width, of_d, side, points);
    }
    for (int p = 0; p < points * points; p++) {
        float *to = du + p * in->width * out->width;
        if (out->width % (4 * LANES) == 0)
            add_products(v + p * of_v, d + p * of_d, to, in->width, out->width, count, 4, 4);
        else if (out->width % (2 * LANES) == 0)
            add_products(v + p * of_v, d + p * of_d, to, in->width, out->width, count, 8, 2);
        else
            add_products(v + p * of_v, d + p * of_d, to, in->width, out->width, count, 16, 1);
    }
}

/* Add the gradient of the weights' points of convolve_cells, with offset 0, to
 * du [threads, points^2, in width, out width]. */
void convolve_cells_weights(const void *x, int is_bytes, const void *grids, const float *dy, float *du, float *scratch,
                            int64_t size, int64_t images, int side, int points, int threads) {
    const Grid *in = grids, *out = in + 1;
    int64_t down = (out->h + side - 1) / side, right = (out->w + side - 1) / side, all = images * down * right;
    int64_t groups = (all + TILES - 1) / TILES, taken = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        float *v = scratch + t * size, *d = v + points * points * (TILES * in->width + FULL);
        float *to = du + t * points * points * in->width * out->width;
        for (int64_t g = next_of(&taken); g < groups; g = next_of(&taken)) {
            int64_t first = g * TILES, count = all - first < TILES ? all - first : TILES;
#define CASE(bytes, cells, p)                              \
    if (is_bytes == bytes && side == cells && points == p) \
    add_weight_tiles(in, out, x, dy, to, v, d, first, count, bytes, cells, p)
            TILINGS
#undef CASE
        }
    }
}

/* The taps of cells: weights [outputs, kernel, kernel, channels] of blocks of stride x stride pixels. */
typedef struct {
    int64_t outputs, kernel, stride, channels, width; /* width: numbers of a cell */
} Weights;

/* Where in the weights of an output tap (i, j) of a number of the cell is. */
INLINE int64_t tap_of(const Weights *w, int64_t number, int64_t i, int64_t j) {
    int64_t line = w->stride * w->channels;
    return (i * w->stride + number / line) * w->kernel * w->channels + j * line + number % line;
}

/* Transform n weights w[0], w[step], ... to points u[0], u[next], ... */
INLINE void weight_to_points(const lanes *w, lanes *u, const int n, const int points, const int step, const int next) {
    lanes far = n == 3 ? w[2 * step] : (lanes){0};
    lanes even1 = w[0] + far, odd1 = w[step], even2 = w[0] + 4 * far, odd2 = 2 * w[step];
    if (points == 6) {
        u[0] = w[0] / 4;
        u[next] = (even1 + odd1) / -6, u[2 * next] = (even1 - odd1) / -6;
        u[3 * next] = (even2 + odd2) / 24, u[4 * next] = (even2 - odd2) / 24;
    } else if (points == 5) {
        u[0] = w[0] / 2;
        u[next] = (even1 + odd1) / -2, u[2 * next] = (even1 - odd1) / -6, u[3 * next] = (even2 + odd2) / 6;
    } else {
        u[0] = w[0];
        u[next] = (even1 + odd1) / 2, u[2 * next] = (even1 - odd1) / 2;
    }
    u[(points - 1) * next] = w[(n - 1) * step];
}

/* The transpose of weight_to_points. */
INLINE void weight_from_points(const lanes *u, lanes *w, const int n, const int points, const int step, const int next) {
    lanes u1 = u[step] / (points == 6 ? -6.0f : points == 5 ? -2.0f : 2.0f), u2 = u[2 * step] / (points == 4 ? 2.0f : -6.0f);
    lanes u3 = {0}, u4 = {0};
    if (points > 4) u3 = u[3 * step] / (points == 6 ? 24.0f : 6.0f);
    if (points > 5) u4 = u[4 * step] / 24;
    w[0] = u[0] / (points == 6 ? 4.0f : points == 5 ? 2.0f : 1.0f) + u1 + u2 + u3 + u4;
    w[next] = u1 - u2 + 2 * (u3 - u4);
    if (n == 3) w[2 * next] = u1 + u2 + 4 * (u3 + u4);
    w[(n - 1) * next] += u[(points - 1) * step];
}

INLINE void points_of(const Weights *s, const float *weight, float *u, const int n, const int points, const int mirrored) {
    int64_t rows = mirrored ? s->outputs : s->width, columns = mirrored ? s->width : s->outputs;
    int64_t each = s->kernel * s->kernel * s->channels;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += LANES) {
            lanes w[9], half[3 * MOST], d[MOST * MOST];
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++)
                    if (mirrored) {
                        w[i * n + j] = *(const lanes *)(weight + r * each + tap_of(s, c, n - 1 - i, n - 1 - j));
                    } else {
                        const float *from = weight + c * each + tap_of(s, r, i, j);
                        for (int k = 0; k < LANES; k++) w[i * n + j][k] = from[k * each];
                    }
            for (int i = 0; i < n; i++) weight_to_points(w + i * n, half + i * points, n, points, 1, 1);
            for (int j = 0; j < points; j++) weight_to_points(half + j, d + j, n, points, points, points);
            for (int p = 0; p < points * points; p++) *(lanes *)(u + (p * rows + r) * columns + c) = d[p];
        }
}

/* Call a function with the sizes of a transform as constants. */
#define ANY_SIZE(function, n, points)                                             \
    do {                                                                          \
        if (n == 2) points == 6 ? function(2, 6) : function(2, 4);                \
        if (n == 3) points == 6 ? function(3, 6) : function(3, 5);                \
    } while (0)

/* Write the points u [points^2, width, outputs] of weights; `mirrored` [points^2, outputs, width], which convolve gradients. */
void weights_to_points(const float *weight, float *u, int64_t outputs, int64_t kernel, int64_t stride, int64_t channels,
                       int points, int mirrored) {
    Weights s = {outputs, kernel, stride, channels, stride * stride * channels};
#define WRITE(n, p) (mirrored ? points_of(&s, weight, u, n, p, 1) : points_of(&s, weight, u, n, p, 0))
    ANY_SIZE(WRITE, kernel / stride, points);
#undef WRITE
}

INLINE void gradient_of(const Weights *s, const float *du, float *dweight, const int n, const int points) {
    int64_t each = s->kernel * s->kernel * s->channels;
    for (int64_t r = 0; r < s->width; r++)
        for (int64_t c = 0; c < s->outputs; c += LANES) {
            lanes d[MOST * MOST], half[3 * MOST], w[9];
            for (int p = 0; p < points * points; p++) d[p] = *(const lanes *)(du + (p * s->width + r) * s->outputs + c);
            for (int j = 0; j < points; j++) weight_from_points(d + j, half + j, n, points, points, points);
            for (int i = 0; i < n; i++) weight_from_points(half + i * points, w + i * n, n, points, 1, 1);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++)
                    for (int k = 0; k < LANES; k++) dweight[(c + k) * each + tap_of(s, r, i, j)] = w[i * n + j][k];
        }
}

/* Write the gradient of the weights, given the gradient of their points, du [points^2, width, outputs]. */
void weights_from_points(const float *du, float *dweight, int64_t outputs, int64_t kernel, int64_t stride,
                         int64_t channels, int points) {
    Weights s = {outputs, kernel, stride, channels, stride * stride * channels};
#define WRITE(n, p) gradient_of(&s, du, dweight, n, p)
    ANY_SIZE(WRITE, kernel / stride, points);
#undef WRITE
}

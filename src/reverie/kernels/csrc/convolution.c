/* Convolutions without padding whose stride divides the kernel, or of 3 x 3 with stride 1, for kernels/conv_relu.py.
 *
 * Blocks of stride x stride pixels are the cells of a grid. A convolution of kernel k and stride s has kernel k / s and
 * stride 1 over cells, whose rows are s segments of memory. Where k / s is 2 or 3, Winograd's minimal filtering with six
 * points computes tiles of 5 x 5 or 4 x 4 cells with 36 products instead of 100 or 144. Gradients are its transposes.
 *
 * A grid is uint8 or float32; its segments have their own gaps, so that images need no copy.
 */

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "winograd.h"

enum { POINTS = 6, LARGEST = 5 };

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

/* Transform the tile that begins at cell (row, column), zero beyond the border, to v[point * stride + number]. Where a
 * segment is not whole vectors, the next one takes the place of what is read beyond it. */
INLINE void read_tile(const Grid *g, const void *x, int64_t base, int64_t row, int64_t column, float *v, int64_t stride,
                      const int is_bytes) {
    int whole = row >= 0 && column >= 0 && row + POINTS <= g->h && column + POINTS <= g->w;
    int64_t bottom = base + (row + POINTS) * g->segments * g->row;
    whole = whole && (g->each % LANES == 0 || bottom < g->numbers);
    for (int64_t s = 0; s < g->segments; s++)
        for (int64_t c = 0; c < g->each; c += LANES) {
            lanes d[POINTS * POINTS];
            int64_t from = base + (row * g->segments + s) * g->row + column * g->each + c;
            for (int i = 0; i < POINTS; i++, from += g->segments * g->row)
                for (int j = 0; j < POINTS; j++) {
                    int inside = row + i >= 0 && row + i < g->h && column + j >= 0 && column + j < g->w;
                    int64_t at = from + j * g->each;
                    d[i * POINTS + j] = whole ? load_any(x, at, is_bytes) : inside ? load_last(x, at, g->numbers, is_bytes) : (lanes){0};
                }
            for (int j = 0; j < POINTS; j++) to_six_points(d + j, POINTS);
            for (int i = 0; i < POINTS; i++) to_six_points(d + i * POINTS, 1);
            float *to = v + s * g->each + c;
            for (int p = 0; p < POINTS * POINTS; p++) *(lanes *)(to + p * stride) = d[p];
        }
}

/* Transform six points m[0], m[step], ... to `side` outputs y[0], y[next], ... */
INLINE void from_six_points(const lanes *m, lanes *y, const int side, const int step, const int next) {
    lanes sum1 = m[step] + m[2 * step], less1 = m[step] - m[2 * step];
    lanes sum2 = m[3 * step] + m[4 * step], less2 = m[3 * step] - m[4 * step];
    y[0] = m[0] + sum1 + sum2;
    y[next] = less1 + 2 * less2;
    y[2 * next] = sum1 + 4 * sum2;
    y[3 * next] = less1 + 8 * less2;
    if (side == 5) y[4 * next] = sum1 + 16 * sum2;
    y[(side - 1) * next] += m[5 * step];
}

/* The transpose of from_six_points. */
INLINE void spread_to_points(const lanes *y, lanes *m, const int side, const int next, const int step) {
    lanes y4 = side == 5 ? y[4 * next] : (lanes){0};
    lanes even1 = y[0] + y[2 * next] + y4, odd1 = y[next] + y[3 * next];
    lanes even2 = y[0] + 4 * y[2 * next] + 16 * y4, odd2 = 2 * y[next] + 8 * y[3 * next];
    m[0] = y[0];
    m[step] = even1 + odd1, m[2 * step] = even1 - odd1;
    m[3 * step] = even2 + odd2, m[4 * step] = even2 - odd2;
    m[5 * step] = y[(side - 1) * next];
}

/* Transform points m[point * stride + number] to the tile at (row, column), as far as it is in the grid. */
INLINE void write_tile(const Grid *g, const float *m, int64_t stride, const float *bias, float *y, int64_t row,
                       int64_t column, const int side, const int relu) {
    for (int64_t s = 0; s < g->segments; s++)
        for (int64_t k = 0; k < g->each; k += LANES) {
            int64_t number = s * g->each + k;
            lanes d[POINTS * POINTS], half[LARGEST * POINTS], tile[LARGEST * LARGEST], zero = {0};
            lanes base = bias ? *(const lanes *)(bias + number) : zero;
            for (int p = 0; p < POINTS * POINTS; p++) d[p] = *(const lanes *)(m + p * stride + number);
            for (int j = 0; j < POINTS; j++) from_six_points(d + j, half + j, side, POINTS, POINTS);
            for (int i = 0; i < side; i++) from_six_points(half + i * POINTS, tile + i * side, side, 1, 1);
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
                          const int side) {
    for (int64_t k = 0; k < g->each; k += LANES) {
        lanes d[POINTS * POINTS], half[POINTS * LARGEST], tile[LARGEST * LARGEST];
        for (int i = 0; i < side; i++)
            for (int j = 0; j < side; j++) {
                int inside = row + i < g->h && column + j < g->w;
                const float *from = y + (row + i) * g->row + (column + j) * g->each + k;
                tile[i * side + j] = inside ? *(const lanes *)from : (lanes){0};
            }
        for (int j = 0; j < side; j++) spread_to_points(tile + j, half + j, side, side, side);
        for (int i = 0; i < POINTS; i++) spread_to_points(half + i * side, d + i * POINTS, side, 1, 1);
        for (int p = 0; p < POINTS * POINTS; p++) *(lanes *)(to + p * stride + k) = d[p];
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
                           const int side, const int relu) {
    int64_t of_v = TILES * in->width + FULL, of_m = TILES * out->width + FULL;
    int64_t down = (out->h + side - 1) / side, right = (out->w + side - 1) / side;
    for (int64_t t = 0; t < count; t++) {
        Place p = place_of(first + t, down, right, side);
        read_tile(in, x, p.image * in->image, p.row + offset, p.column + offset, v + t * in->width, of_v, is_bytes);
    }
    for (int p = 0; p < POINTS * POINTS; p++)
        multiply_point(v + p * of_v, u + p * in->width * out->width, m + p * of_m, in->width, out->width, in->width);
    for (int64_t t = 0; t < count; t++) {
        Place p = place_of(first + t, down, right, side);
        write_tile(out, m + t * out->width, of_m, bias, y + p.image * out->image, p.row, p.column, side, relu);
    }
}

/* Convolve the grid x to the grid y, from `offset` cells on; `side` is 5 for kernels of 2 x 2 cells, 4 for 3 x 3. The
 * weights' points u are [36, in width, out width], the bias [out width] or null. `scratch` is [threads, size]: for each point
 * [TILES, in width] and [TILES, out width], each followed by FULL numbers. */
void convolve_cells(const void *x, int is_bytes, const void *grids, const float *u, const float *bias, float *y,
                    float *scratch, int64_t size, int64_t images, int64_t offset, int side, int relu, int threads) {
    const Grid *in = grids, *out = in + 1;
    int64_t down = (out->h + side - 1) / side, right = (out->w + side - 1) / side, all = images * down * right;
    int64_t groups = (all + TILES - 1) / TILES, taken = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        float *v = scratch + t * size, *m = v + POINTS * POINTS * (TILES * in->width + FULL);
        for (int64_t g = next_of(&taken); g < groups; g = next_of(&taken)) {
            int64_t first = g * TILES, count = all - first < TILES ? all - first : TILES;
            if (is_bytes && side == 5)
                convolve_tiles(in, out, x, u, bias, y, v, m, offset, first, count, 1, 5, relu);
            else if (is_bytes)
                convolve_tiles(in, out, x, u, bias, y, v, m, offset, first, count, 1, 4, relu);
            else if (side == 5)
                convolve_tiles(in, out, x, u, bias, y, v, m, offset, first, count, 0, 5, relu);
            else
                convolve_tiles(in, out, x, u, bias, y, v, m, offset, first, count, 0, 4, relu);
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
                             float *d, int64_t first, int64_t count, const int is_bytes, const int side) {
    int64_t of_v = TILES * in->width + FULL, of_d = TILES * out->width + FULL;
    int64_t down = (out->h + side - 1) / side, right = (out->w + side - 1) / side;
    for (int64_t t = 0; t < count; t++) {
        Place p = place_of(first + t, down, right, side);
        read_tile(in, x, p.image * in->image, p.row, p.column, v + t * in->width, of_v, is_bytes);
        read_gradient(out, dy + p.image * out->image, p.row, p.column, d + t * out->width, of_d, side);
    }
    for (int p = 0; p < POINTS * POINTS; p++) {
        float *to = du + p * in->width * out->width;
        if (out->width % (4 * LANES) == 0)
            add_products(v + p * of_v, d + p * of_d, to, in->width, out->width, count, 4, 4);
        else if (out->width % (2 * LANES) == 0)
            add_products(v + p * of_v, d + p * of_d, to, in->width, out->width, count, 8, 2);
        else
            add_products(v + p * of_v, d + p * of_d, to, in->width, out->width, count, 16, 1);
    }
}

/* Add the gradient of the weights' points of convolve_cells, with offset 0, to du [threads, 36, in width, out width]. */
void convolve_cells_weights(const void *x, int is_bytes, const void *grids, const float *dy, float *du, float *scratch,
                            int64_t size, int64_t images, int side, int threads) {
    const Grid *in = grids, *out = in + 1;
    int64_t down = (out->h + side - 1) / side, right = (out->w + side - 1) / side, all = images * down * right;
    int64_t groups = (all + TILES - 1) / TILES, taken = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        float *v = scratch + t * size, *d = v + POINTS * POINTS * (TILES * in->width + FULL);
        float *to = du + t * POINTS * POINTS * in->width * out->width;
        for (int64_t g = next_of(&taken); g < groups; g = next_of(&taken)) {
            int64_t first = g * TILES, count = all - first < TILES ? all - first : TILES;
            if (is_bytes && side == 5)
                add_weight_tiles(in, out, x, dy, to, v, d, first, count, 1, 5);
            else if (is_bytes)
                add_weight_tiles(in, out, x, dy, to, v, d, first, count, 1, 4);
            else if (side == 5)
                add_weight_tiles(in, out, x, dy, to, v, d, first, count, 0, 5);
            else
                add_weight_tiles(in, out, x, dy, to, v, d, first, count, 0, 4);
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

INLINE void weight_to_points(const lanes *w, lanes *u, const int n, const int step, const int next) {
    lanes far = n == 3 ? w[2 * step] : (lanes){0};
    lanes even1 = (w[0] + far) / -6, odd1 = w[step] / -6, even2 = (w[0] + 4 * far) / 24, odd2 = w[step] / 12;
    u[0] = w[0] / 4;
    u[next] = even1 + odd1, u[2 * next] = even1 - odd1;
    u[3 * next] = even2 + odd2, u[4 * next] = even2 - odd2;
    u[5 * next] = w[(n - 1) * step];
}

/* The transpose of weight_to_points. */
INLINE void weight_from_points(const lanes *u, lanes *w, const int n, const int step, const int next) {
    lanes sum1 = (u[step] + u[2 * step]) / -6, less1 = (u[step] - u[2 * step]) / -6;
    lanes sum2 = (u[3 * step] + u[4 * step]) / 24, less2 = (u[3 * step] - u[4 * step]) / 12;
    w[0] = u[0] / 4 + sum1 + sum2;
    w[next] = less1 + less2;
    if (n == 3) w[2 * next] = sum1 + 4 * sum2;
    w[(n - 1) * next] += u[5 * step];
}

INLINE void points_of(const Weights *s, const float *weight, float *u, const int n, const int mirrored) {
    int64_t rows = mirrored ? s->outputs : s->width, columns = mirrored ? s->width : s->outputs;
    int64_t each = s->kernel * s->kernel * s->channels;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += LANES) {
            lanes w[9], half[3 * POINTS], d[POINTS * POINTS];
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++)
                    if (mirrored) {
                        w[i * n + j] = *(const lanes *)(weight + r * each + tap_of(s, c, n - 1 - i, n - 1 - j));
                    } else {
                        const float *from = weight + c * each + tap_of(s, r, i, j);
                        for (int k = 0; k < LANES; k++) w[i * n + j][k] = from[k * each];
                    }
            for (int i = 0; i < n; i++) weight_to_points(w + i * n, half + i * POINTS, n, 1, 1);
            for (int j = 0; j < POINTS; j++) weight_to_points(half + j, d + j, n, POINTS, POINTS);
            for (int p = 0; p < POINTS * POINTS; p++) *(lanes *)(u + (p * rows + r) * columns + c) = d[p];
        }
}

/* Write the points u [36, width, outputs] of weights; `mirrored` [36, outputs, width], which convolve gradients. */
void weights_to_points(const float *weight, float *u, int64_t outputs, int64_t kernel, int64_t stride, int64_t channels,
                       int mirrored) {
    Weights s = {outputs, kernel, stride, channels, stride * stride * channels};
    if (kernel / stride == 2)
        mirrored ? points_of(&s, weight, u, 2, 1) : points_of(&s, weight, u, 2, 0);
    else
        mirrored ? points_of(&s, weight, u, 3, 1) : points_of(&s, weight, u, 3, 0);
}

INLINE void gradient_of(const Weights *s, const float *du, float *dweight, const int n) {
    int64_t each = s->kernel * s->kernel * s->channels;
    for (int64_t r = 0; r < s->width; r++)
        for (int64_t c = 0; c < s->outputs; c += LANES) {
            lanes d[POINTS * POINTS], half[3 * POINTS], w[9];
            for (int p = 0; p < POINTS * POINTS; p++) d[p] = *(const lanes *)(du + (p * s->width + r) * s->outputs + c);
            for (int j = 0; j < POINTS; j++) weight_from_points(d + j, half + j, n, POINTS, POINTS);
            for (int i = 0; i < n; i++) weight_from_points(half + i * POINTS, w + i * n, n, 1, 1);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++)
                    for (int k = 0; k < LANES; k++) dweight[(c + k) * each + tap_of(s, r, i, j)] = w[i * n + j][k];
        }
}

/* Write the gradient of the weights, given the gradient of their points, du [36, width, outputs]. */
void weights_from_points(const float *du, float *dweight, int64_t outputs, int64_t kernel, int64_t stride,
                         int64_t channels) {
    Weights s = {outputs, kernel, stride, channels, stride * stride * channels};
    kernel / stride == 2 ? gradient_of(&s, du, dweight, 2) : gradient_of(&s, du, dweight, 3);
}

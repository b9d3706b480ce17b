/* Products of float32 matrices by the vector units: PANEL columns of the second factor at a time, so that the sums of a few
 * rows stay in registers. perceptron.c, perceptron_backward.c and recurrence.c use them.
 */

#ifndef REVERIE_PANELS_H
#define REVERIE_PANELS_H

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels.h"

#define PANEL 32
#ifdef __AVX512F__
#define LANES 16
#define TILE 8 /* rows at once, so that TILE * PANEL / LANES accumulators stay in registers */
#else
#define LANES 8
#define TILE 3
#endif
#define VECTORS (PANEL / LANES)

typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t Bits __attribute__((vector_size(LANES * 4), aligned(4))); /* bits of floats, or masks of comparisons */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What is done with a finished tile [rows, columns] of c: stored, after ReLU, masked, or added to c. */
typedef enum { PLAIN, RELU, MASK, ADD } Then;

/* Store a tile in c, whose rows lie ldc apart. `bias` is [columns]. With MASK, numbers become 0 where `mask`, which has the
 * layout of c, is 0. */
static inline void finish(const float *out, float *c, int64_t ldc, int64_t rows, int64_t columns, const float *bias,
                          const float *mask, Then then) {
    for (int64_t r = 0; r < rows; r++, out += PANEL, c += ldc) {
        if (then == ADD) {
            for (int64_t j = 0; j < columns; j++) c[j] += out[j];
        } else if (then == MASK) {
            for (int64_t j = 0; j < columns; j++) c[j] = mask[r * ldc + j] != 0.0f ? out[j] : 0.0f;
        } else if (then == RELU) {
            for (int64_t j = 0; j < columns; j++) {
                float y = out[j] + bias[j];
                c[j] = y < 0.0f ? 0.0f : y; /* NaN stays NaN */
            }
        } else {
            for (int64_t j = 0; j < columns; j++) c[j] = bias ? out[j] + bias[j] : out[j];
        }
    }
}

/* The number of panels of a layer. */
static inline int64_t panels_of(int64_t width) { return (width + PANEL - 1) / PANEL; }

/* ---------------------------------------------------------------------- products */

/* sum_k a[r, k] b[k, :] of `rows` rows and PANEL columns; a[r, k] lies at r * ar + k * ak. `rows` is a compile-time constant,
 * so that the sums are registers. */
static inline __attribute__((always_inline)) void tile_sums(const float *a, int64_t ar, int64_t ak, const float *b,
                                                            int64_t ldb, Vector sum[TILE][VECTORS], int64_t depth,
                                                            const int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = (Vector){0};
    for (int64_t k = 0; k < depth; k++) {
        const Vector *row = (const Vector *)(b + k * ldb);
        for (int64_t r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) sum[r][v] += a[r * ar + k * ak] * row[v];
    }
}

/* Compute tile_sums() of a part of a tile, or of one in which not all columns exist, into `out` [rows, PANEL]. */
static inline __attribute__((always_inline)) void tile(const float *a, int64_t ar, int64_t ak, const float *b,
                                                       int64_t ldb, float *out, int64_t depth, const int64_t rows) {
    Vector sum[TILE][VECTORS];
    tile_sums(a, ar, ak, b, ldb, sum, depth, rows);
    memcpy(out, sum, rows * PANEL * sizeof(float));
}

/* Compute a whole tile of c and finish it in the same registers; `then` is a compile-time constant. */
static inline __attribute__((always_inline)) void whole_tile(const float *a, int64_t ar, int64_t ak, const float *b,
                                                             int64_t ldb, float *c, int64_t ldc, int64_t depth,
                                                             const float *bias, const float *mask, const Then then) {
    Vector sum[TILE][VECTORS];
    tile_sums(a, ar, ak, b, ldb, sum, depth, TILE);
    for (int64_t r = 0; r < TILE; r++)
        for (int v = 0; v < VECTORS; v++) {
            Vector *to = (Vector *)(c + r * ldc) + v, out = sum[r][v];
            if (bias) out += ((const Vector *)bias)[v];
            if (then == ADD) out = *to + out;
            if (then == RELU) out = (Vector)((Bits)out & ~(out < 0.0f)); /* NaN stays NaN */
            if (then == MASK) out = (Vector)((Bits)out & (((const Vector *)(mask + r * ldc))[v] != 0.0f));
            *to = out;
        }
}

/* Call tile() with `rows` as a compile-time constant, so that the sums are registers. */
static inline void any_tile(const float *a, int64_t ar, int64_t ak, const float *b, int64_t ldb, float *out,
                            int64_t depth, int64_t rows) {
    switch (rows) {
    case 1: tile(a, ar, ak, b, ldb, out, depth, 1); break;
    case 2: tile(a, ar, ak, b, ldb, out, depth, 2); break;
#if TILE > 3
    case 3: tile(a, ar, ak, b, ldb, out, depth, 3); break;
    case 4: tile(a, ar, ak, b, ldb, out, depth, 4); break;
    case 5: tile(a, ar, ak, b, ldb, out, depth, 5); break;
    case 6: tile(a, ar, ak, b, ldb, out, depth, 6); break;
    case 7: tile(a, ar, ak, b, ldb, out, depth, 7); break;
#endif
    default: tile(a, ar, ak, b, ldb, out, depth, TILE);
    }
}

/* Copy up to PANEL columns of b [depth, ldb] to a panel, padded with zeros. */
static inline void pad_columns(const float *b, int64_t ldb, float *panel, int64_t depth, int64_t columns) {
    for (int64_t k = 0; k < depth; k++) {
        memcpy(panel + k * PANEL, b + k * ldb, columns * sizeof(float));
        memset(panel + k * PANEL + columns, 0, (PANEL - columns) * sizeof(float));
    }
}

/* A panel of `columns` columns of c = a b, where `panel` holds these columns of b. */
static inline void panel_product(const float *a, int64_t ar, int64_t ak, const float *panel, int64_t ldpanel, float *c,
                                 int64_t ldc, int64_t rows, int64_t depth, int64_t columns, const float *bias,
                                 const float *mask, Then then) {
    float out[TILE * PANEL] __attribute__((aligned(64)));
    for (int64_t i = 0; i < rows; i += TILE) {
        int64_t count = least(TILE, rows - i);
        for (int64_t r = 0; mask && r < count; r++) /* load the mask while this tile is computed */
            for (int64_t j = 0; j < columns; j += 16) __builtin_prefetch(mask + (i + r) * ldc + j);
        if (count == TILE && columns == PANEL) {
            const float *from = a + i * ar, *through = mask ? mask + i * ldc : 0;
            float *to = c + i * ldc;
#define CASE(then) case then: whole_tile(from, ar, ak, panel, ldpanel, to, ldc, depth, bias, through, then); break
            switch (then) { CASE(PLAIN); CASE(RELU); CASE(MASK); CASE(ADD); }
#undef CASE
            continue;
        }
        any_tile(a + i * ar, ar, ak, panel, ldpanel, out, depth, count);
        finish(out, c + i * ldc, ldc, count, columns, bias, mask ? mask + i * ldc : 0, then);
    }
}

#ifdef __AVX512F__
/* Transpose 16 x 16 numbers, whose rows lie `ld` apart, to rows that lie PANEL apart. */
static inline void transpose_block(const float *from, int64_t ld, float *to) {
    __m512 r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(from + i * ld);
    for (int i = 0; i < 16; i += 2)
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
#define PAIRS(half, i, j) (__m512)_mm512_unpack##half##_pd((__m512d)t[i], (__m512d)t[j])
    for (int i = 0; i < 16; i += 4) { /* r[i + j] becomes column j of every fourth */
        r[i] = PAIRS(lo, i, i + 2), r[i + 1] = PAIRS(hi, i, i + 2);
        r[i + 2] = PAIRS(lo, i + 1, i + 3), r[i + 3] = PAIRS(hi, i + 1, i + 3);
    }
#undef PAIRS
    enum { EVEN = 0x88, ODD = 0xdd }; /* quarters of both operands */
    for (int j = 0; j < 4; j++) {
        __m512 even = _mm512_shuffle_f32x4(r[j], r[4 + j], EVEN), odd = _mm512_shuffle_f32x4(r[j], r[4 + j], ODD);
        __m512 more = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], EVEN), other = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], ODD);
        _mm512_storeu_ps(to + j * PANEL, _mm512_shuffle_f32x4(even, more, EVEN));
        _mm512_storeu_ps(to + (4 + j) * PANEL, _mm512_shuffle_f32x4(odd, other, EVEN));
        _mm512_storeu_ps(to + (8 + j) * PANEL, _mm512_shuffle_f32x4(even, more, ODD));
        _mm512_storeu_ps(to + (12 + j) * PANEL, _mm512_shuffle_f32x4(odd, other, ODD));
    }
}
#endif

/* Transpose up to PANEL rows of `outputs` numbers, which lie `ld` apart, to [outputs, PANEL], padded with zeros. */
static inline void transpose_rows(const float *from, int64_t ld, int64_t columns, int64_t outputs, float *panel) {
    for (int64_t k = 0; k < outputs; k += LANES) { /* a block of LANES at once stays in the cache */
        int64_t depth = least(LANES, outputs - k);
#ifdef __AVX512F__
        if (columns == PANEL && depth == LANES) {
            transpose_block(from + k, ld, panel + k * PANEL);
            transpose_block(from + k + LANES * ld, ld, panel + k * PANEL + LANES);
            continue;
        }
#endif
        for (int64_t q = 0; q < depth; q++) {
            float *to = panel + (k + q) * PANEL;
            for (int64_t j = 0; j < columns; j++) to[j] = from[j * ld + k + q];
            for (int64_t j = columns; j < PANEL; j++) to[j] = 0.0f;
        }
    }
}

/* Transpose PANEL rows of weights [inputs, outputs], from row i on, to [outputs, PANEL]. */
static inline void transpose_panel(const float *weights, int64_t inputs, int64_t outputs, int64_t i, float *panel) {
    transpose_rows(weights + i * outputs, outputs, least(PANEL, inputs - i), outputs, panel);
}

#endif

/* Products whose first factor has only gates, 0 or 1: sums of some rows of the second factor.
 *
 * By the method of the four Russians (Arlazarov, Dinic, Kronrod and Faradzev 1970): the sums of all subsets of four rows are
 * computed once and kept in a table, so that an output needs one addition for four gates, not four multiplications and
 * additions. perceptron_backward.c uses this for the gradient of a layer after ReLU.
 */

#ifndef REVERIE_GATES_H
#define REVERIE_GATES_H

#include "panels.h"

#define WORD 64 /* gates in a word, and rows whose sums are in a table: with more, the table would leave the first cache */
#define GROUP 4 /* rows of which all subsets are added up */
#define SUBSETS 16
#define TABLE (WORD / GROUP * SUBSETS * PANEL) /* floats in a table */

/* The number of words for this many gates. */
static inline int64_t words_of(int64_t gates) { return (gates + WORD - 1) / WORD; }

/* Bit j is 1 if x[j] is not 0, for `count` numbers, at most WORD. NaN is not 0. */
static inline uint64_t gates_of(const float *x, int64_t count) {
    uint64_t gates = 0;
    int64_t j = 0;
#if defined(__AVX512F__)
    for (; j + 16 <= count; j += 16)
        gates |= (uint64_t)_mm512_cmp_ps_mask(_mm512_loadu_ps(x + j), _mm512_setzero_ps(), _CMP_NEQ_UQ) << j;
#elif defined(__AVX2__)
    for (; j + 8 <= count; j += 8) {
        __m256 open = _mm256_cmp_ps(_mm256_loadu_ps(x + j), _mm256_setzero_ps(), _CMP_NEQ_UQ);
        gates |= (uint64_t)(uint32_t)_mm256_movemask_ps(open) << j;
    }
#endif
    for (; j < count; j++) gates |= (uint64_t)(x[j] != 0.0f) << j;
    return gates;
}

/* The sums of dy[r] over the rows r of x [rows, columns] in which the column is not 0. */
static inline void open_sums(const float *x, const float *dy, int64_t rows, int64_t columns, float *sums) {
    int64_t j = 0;
    for (; j + LANES <= columns; j += LANES) {
        Vector sum = {0};
        for (int64_t r = 0; r < rows; r++) {
            Vector value = dy[r] - (Vector){0};
            sum += (Vector)((Bits)value & (*(const Vector *)(x + r * columns + j) != 0.0f));
        }
        *(Vector *)(sums + j) = sum;
    }
    for (; j < columns; j++) {
        sums[j] = 0;
        for (int64_t r = 0; r < rows; r++) sums[j] += x[r * columns + j] != 0.0f ? dy[r] : 0.0f;
    }
}

/* Transpose a matrix of WORD x WORD bits: swap ever smaller blocks on both sides of the diagonal. */
static inline void transpose_bits(uint64_t *rows) {
    uint64_t mask = 0xFFFFFFFF;
    for (int64_t size = WORD / 2; size; size /= 2, mask ^= mask << size)
        for (int64_t first = 0; first < WORD; first += 2 * size)
            for (int64_t r = first; r < first + size; r++) {
                uint64_t changed = (rows[r] >> size ^ rows[r + size]) & mask;
                rows[r] ^= changed << size;
                rows[r + size] ^= changed;
            }
}

/* The sums of all subsets of each GROUP of rows scale[k] b[k, :], to `table` [WORD / GROUP, SUBSETS, PANEL]. Rows beyond
 * `rows` and columns beyond `columns` are 0. */
static inline void subset_sums(const float *b, int64_t ldb, const float *scale, int64_t rows, int64_t columns, float *table) {
    for (int64_t first = 0; first < WORD; first += GROUP, table += SUBSETS * PANEL) {
        float group[GROUP][PANEL] __attribute__((aligned(64))) = {{0}};
        for (int64_t k = 0; k < GROUP && first + k < rows; k++) {
            const float *row = b + (first + k) * ldb, factor = scale[first + k];
            if (columns == PANEL)
                for (int64_t j = 0; j < PANEL; j++) group[k][j] = factor * row[j];
            else
                for (int64_t j = 0; j < columns; j++) group[k][j] = factor * row[j];
        }
        for (int v = 0; v < VECTORS; v++) {
            Vector sums[SUBSETS] = {{0}};
            for (int k = 0; k < GROUP; k++)
                for (int s = 0; s < 1 << k; s++) sums[(1 << k) + s] = sums[s] + ((const Vector *)group[k])[v];
            for (int s = 0; s < SUBSETS; s++) ((Vector *)(table + s * PANEL))[v] = sums[s];
        }
    }
}

/* For `rows` rows of `columns` numbers, `ld` apart in `to`: add the sums from `table` that the row's word of gates selects;
 * its words are `next` apart. `first`: the row was 0 before. If `scale` is not null the row is then multiplied by scale[r],
 * and 0 where `mask`, which has the layout of `to`, is 0. */
static inline void add_gated(const float *table, const uint64_t *gates, int64_t next, float *to, int64_t ld, int64_t rows,
                             int64_t columns, int first, const float *scale, const float *mask) {
    float part[PANEL] __attribute__((aligned(64))), shown[PANEL] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows; r++, gates += next, to += ld) {
        Vector sums[VECTORS] = {{0}}, *row = (Vector *)(columns < PANEL ? part : to);
        if (columns < PANEL && !first) memcpy(part, to, columns * sizeof(float));
        for (int v = 0; !first && v < VECTORS; v++) sums[v] = row[v];
        for (int64_t g = 0; g < WORD / GROUP; g++) {
            const Vector *sum = (const Vector *)(table + (g * SUBSETS + (*gates >> GROUP * g & (SUBSETS - 1))) * PANEL);
            for (int v = 0; v < VECTORS; v++) sums[v] += sum[v];
        }
        if (scale) {
            const Vector *open = (const Vector *)(columns < PANEL ? shown : mask + r * ld);
            if (columns < PANEL) memcpy(shown, mask + r * ld, columns * sizeof(float));
            for (int v = 0; v < VECTORS; v++) sums[v] = (Vector)((Bits)(sums[v] * scale[r]) & (open[v] != 0.0f));
        }
        for (int v = 0; v < VECTORS; v++) row[v] = sums[v];
        if (columns < PANEL) memcpy(to, part, columns * sizeof(float));
    }
}

#endif

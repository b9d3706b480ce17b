/* Blocks of 32 x 32 numbers: products of tiles (tiles.h), and all that becomes of them.
 *
 * A matrix unit leaves the vector units idle, so that one block is finished while the next one is computed: a bias is added,
 * negative numbers become 0, and the next product gets what it needs as tiles.
 */

#ifndef REVERIE_BLOCKS_H
#define REVERIE_BLOCKS_H

#include "tiles.h"

#ifdef HAVE_TILES

/* ---------------------------------------------------------------------- what becomes of a product */

enum { SIDE = 32, SQUARE = SIDE * SIDE }; /* of a block, the unit of work */

/* Numbers [rows, columns] that were computed, and all that becomes of them: each of these may be absent. */
typedef struct {
    const float *from;              /* the numbers, as rows `ld_from` apart */
    const float *scale, *times;     /* rows are multiplied by `scale` [rows], the mask's too; columns by `times` [columns] */
    const float *bias, *mask, *old; /* bias [columns] is added; where mask is 0 they become 0; `old` is added */
    float *to, *sums;               /* as they are, mask, old and to being rows `ld` apart; [columns] of all rows */
    Half *tiles, *pairs, *kept;     /* as rows of tiles; as pairs; the mask's numbers as rows of the transposed matrix */
    int64_t ld_from, ld, rows, columns;
    int64_t next, next_pairs; /* where the second 16 rows of tiles are, and the second 16 columns of pairs and kept */
    int is;                   /* below */
} Block;

enum { NOTHING = 0, TWO = 1, BIASED = 2, RELUS = 4, MASKED = 8, ADDED = 16, STORED = 32, SUMMED = 64, TILED_ROWS = 128,
       PAIRED = 256, KEPT = 512, DOWN = 1024, PART = 2048, UPPER = 4096, LOWER = 8192, SCALED = 16384, TIMES = 32768 };
       /* TWO: the numbers are the sum of two blocks that follow each other; DOWN: blocks follow each other along the rows;
       PART: this one is smaller than 32 x 32; UPPER, LOWER: only that half of the rows is finished now */

/* What those blocks have that are not at the edge. `others` are those flags that do not follow from what is there. */
static inline Block described(Block b, int others) {
    b.is = others | (b.bias ? BIASED : 0) | (b.mask ? MASKED : 0) | (b.old ? ADDED : 0) | (b.to ? STORED : 0) |
           (b.sums ? SUMMED : 0) | (b.tiles ? TILED_ROWS : 0) | (b.pairs ? PAIRED : 0) | (b.kept ? KEPT : 0) |
           (b.scale ? SCALED : 0) | (b.times ? TIMES : 0);
    return b;
}

/* The same of block j of `whole`. */
static inline int is_block(const Block *whole, int64_t j) {
    int64_t down = whole->is & DOWN ? j : 0, along = whole->is & DOWN ? 0 : j;
    return whole->is | (whole->rows - SIDE * down < SIDE || whole->columns - SIDE * along < SIDE ? PART : 0);
}

/* Block j of `whole`, which is what `is` says. Never written to memory: what is read there again soon after waits until
 * all that was stored before is there, such as the sums of the product that has just been begun. */
static inline __attribute__((always_inline)) Block block_at(const Block *whole, int64_t j, const float *from, const int is) {
    Block b = *whole;
    int64_t at = is & DOWN ? 0 : SIDE * j;
    b.from = from;
    b.columns -= at;
    if (is & DOWN) b.rows -= SIDE * j, b.to += SIDE * j * b.ld;
    if (is & BIASED) b.bias += at;
    if (is & MASKED) b.mask += at;
    if (is & ADDED) b.old += at;
    if (is & STORED) b.to += at;
    if (is & SUMMED) b.sums += at;
    if (is & TILED_ROWS) b.tiles += j * UNIT;
    if (is & PAIRED) b.pairs += 2 * j * b.next_pairs;
    if (is & KEPT) b.kept += 2 * j * b.next_pairs;
    return b;
}

static inline __attribute__((always_inline)) __m512 some(const float *x, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, x);
}

static inline __attribute__((always_inline)) __mmask16 not_zero(__m512 x) {
    return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
}

static inline __attribute__((always_inline)) __m512 row_scale(const Block *b, int64_t r, const int is) {
    return is & PART && r >= b->rows ? _mm512_setzero_ps() : _mm512_set1_ps(b->scale[r]);
}

/* A product, rounded: compilers may otherwise make one operation of it and the sum that it goes into, or may not. */
static inline __attribute__((always_inline)) __m512 times(__m512 a, __m512 b) {
    a = _mm512_mul_ps(a, b);
    __asm__("" : "+v"(a));
    return a;
}

/* Two rows of a block that has what `is` says: a constant where it matters. NaN stays NaN. */
static inline __attribute__((always_inline)) void finish_pair(const Block *b, int64_t pair, const int is) {
    __mmask16 all[2] = {0xffff, 0xffff};
    __m512 x[2][2], let[2][2] = {{_mm512_setzero_ps(), _mm512_setzero_ps()}, {_mm512_setzero_ps(), _mm512_setzero_ps()}};
    for (int h = 0; h < 2; h++)
        for (int o = 0; o < 2; o++) {
            int64_t r = 2 * pair + o, at = r * b->ld_from + 16 * h, to = r * b->ld + 16 * h;
            if (is & PART) all[h] = r < b->rows ? first_of(b->columns - 16 * h) : 0;
            x[o][h] = some(b->from + at, all[h]);
            __m512 other = is & TWO ? some(b->from + SQUARE + at, all[h]) : _mm512_setzero_ps();
            if (is & TIMES) {
                __m512 factor = some(b->times + 16 * h, all[h]);
                x[o][h] = times(x[o][h], factor);
                if (is & TWO) other = times(other, factor);
            }
            if (is & TWO) x[o][h] = _mm512_add_ps(x[o][h], other);
            if (is & SCALED) x[o][h] = times(x[o][h], row_scale(b, r, is));
            if (is & BIASED) x[o][h] = _mm512_add_ps(x[o][h], some(b->bias + 16 * h, all[h]));
            if (is & RELUS) x[o][h] = _mm512_max_ps(_mm512_setzero_ps(), x[o][h]);
            if (is & MASKED) {
                let[o][h] = some(b->mask + to, all[h]);
                x[o][h] = _mm512_maskz_mov_ps(not_zero(let[o][h]), x[o][h]);
                if (is & SCALED) let[o][h] = times(let[o][h], row_scale(b, r, is));
            }
            if (is & ADDED) x[o][h] = _mm512_add_ps(some(b->old + to, all[h]), x[o][h]);
            if (is & STORED) _mm512_mask_storeu_ps(b->to + to, all[h], x[o][h]);
        }
    if (is & TILED_ROWS) {
        Half *row = b->tiles + pair / 8 * b->next + pair % 8 * 2 * DEPTH;
        for (int o = 0; o < 2; o++) store_row(x[o][0], x[o][1], row + o * DEPTH);
    }
    for (int h = 0; h < 2; h++) {
        if (is & PAIRED) store_pairs(x[0][h], x[1][h], b->pairs + h * b->next_pairs + pair * DEPTH);
        if (is & KEPT) store_pairs(let[0][h], let[1][h], b->kept + h * b->next_pairs + pair * DEPTH);
        if (is & SUMMED) {
            if (is & PART) all[h] = first_of(b->columns - 16 * h);
            __m512 sum = pair ? some(b->sums + 16 * h, all[h]) : _mm512_setzero_ps();
            sum = _mm512_add_ps(_mm512_add_ps(sum, x[0][h]), x[1][h]);
            _mm512_mask_storeu_ps(b->sums + 16 * h, all[h], sum);
        }
    }
}

/* A block is finished in the steps [first, end). */
static inline __attribute__((always_inline)) int64_t first_step(const int is) { return is & LOWER ? 8 : 0; }

static inline __attribute__((always_inline)) int64_t end_step(const int is) {
    return is == NOTHING ? 0 : is & UPPER ? 8 : is & KEPT ? 16 + 2 * PLANES : 16;
}

static inline __attribute__((always_inline)) void finish_step(const Block *b, int64_t step, const int is) {
    if (step < 16) finish_pair(b, step, is);
    else transpose_plane(b->kept + (step - 16) / PLANES * b->next_pairs + (step - 16) % PLANES * PLANE);
}

/* What blocks usually have. */
#define USUAL(CASE) \
    CASE(BIASED | RELUS | STORED | TILED_ROWS); CASE(BIASED | RELUS | TILED_ROWS); CASE(BIASED | RELUS | STORED); \
    CASE(BIASED | STORED); CASE(MASKED | PAIRED | KEPT | SUMMED); CASE(MASKED | PAIRED | KEPT | SUMMED | TILED_ROWS); \
    CASE(MASKED | PAIRED | SUMMED | TILED_ROWS); CASE(MASKED | TILED_ROWS); CASE(STORED); CASE(STORED | DOWN); \
    CASE(STORED | DOWN | TWO | UPPER); CASE(STORED | DOWN | TWO | LOWER)

/* And where gates are one of the factors. */
#define USUAL_OF_GATED_ROWS(CASE) \
    CASE(MASKED | PAIRED | KEPT | SUMMED | SCALED); CASE(MASKED | PAIRED | KEPT | SUMMED | TILED_ROWS | SCALED); \
    CASE(MASKED | TILED_ROWS | SCALED)

#define USUAL_OF_GATED_PAIRS(CASE) \
    CASE(STORED | DOWN | TIMES); CASE(STORED | DOWN | TWO | UPPER | TIMES); CASE(STORED | DOWN | TWO | LOWER | TIMES)

static inline __attribute__((always_inline)) void finish_and(const Block *whole, int64_t j, const float *from, const int is) {
    const Block b = block_at(whole, j, from, is);
    for (int64_t step = first_step(is); step < end_step(is); step++) finish_step(&b, step, is);
}

static void finish_block(const Block *whole, int64_t j, const float *from) {
#define CASE(is) case is: finish_and(whole, j, from, is); break
    int is = is_block(whole, j);
    switch (is) {
        USUAL(CASE);
        USUAL_OF_GATED_ROWS(CASE);
        USUAL_OF_GATED_PAIRS(CASE);
    default: finish_and(whole, j, from, is);
    }
#undef CASE
}

/* ---------------------------------------------------------------------- products */

#define LOAD(tile, from) _tile_loadd(tile, (from), 64)
#define PRODUCT(sum, a, b) _tile_dpbf16ps(sum, a, b)
#define MEMORY __asm__ volatile("" ::: "memory") /* compilers do not know what tiles are loaded from and stored to */

/* Which of two factors are gates: 0 or 1, so that one plane is all there is of them. */
typedef enum { NONE, ROWS_ARE, PAIRS_ARE } Gates;

enum { GATE = 0x3f80 }; /* 1 in bfloat16 */

static inline __attribute__((always_inline)) void product_and(const Half *a, int64_t next_a, const Half *b, int64_t next_b,
                                                              int64_t depth, float *out, const Block *whole, int64_t j,
                                                              const float *from, const int is, const Gates gates) {
    const Block before = is ? block_at(whole, j, from, is) : (Block){0};
    const Half *c = a + next_a, *d = b + next_b;
    const int64_t unit_a = gates == ROWS_ARE ? PLANE : UNIT, unit_b = gates == PAIRS_ARE ? PLANE : UNIT;
    int64_t step = first_step(is), each = (end_step(is) - step + 3 * depth - 1) / (3 * depth);
#define STEPS \
    for (int64_t end = least_of(step + each, end_step(is)); step < end; step++) finish_step(&before, step, is); \
    MEMORY
    MEMORY;
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t k = 0; k < depth; k++, a += unit_a, b += unit_b, c += unit_a, d += unit_b) {
        if (gates == ROWS_ARE) {
            LOAD(4, a); LOAD(5, c);
            for (int p = PLANES - 1; p >= 0; p--) {
                LOAD(6, b + p * PLANE); LOAD(7, d + p * PLANE);
                PRODUCT(0, 4, 6); PRODUCT(2, 5, 6); PRODUCT(1, 4, 7); PRODUCT(3, 5, 7);
                STEPS;
            }
        } else if (gates == PAIRS_ARE) {
            LOAD(6, b); LOAD(7, d);
            for (int p = PLANES - 1; p >= 0; p--) {
                LOAD(4, a + p * PLANE); LOAD(5, c + p * PLANE);
                PRODUCT(0, 4, 6); PRODUCT(1, 4, 7); PRODUCT(2, 5, 6); PRODUCT(3, 5, 7);
                STEPS;
            }
        } else {
            LOAD(4, a); LOAD(6, b + 2 * PLANE); PRODUCT(0, 4, 6); LOAD(7, d + 2 * PLANE); PRODUCT(1, 4, 7);
            LOAD(5, c); PRODUCT(2, 5, 6); LOAD(6, b + PLANE); PRODUCT(3, 5, 7); LOAD(7, d + PLANE);
            PRODUCT(0, 4, 6); PRODUCT(1, 4, 7); LOAD(4, a + PLANE); PRODUCT(2, 5, 6); PRODUCT(3, 5, 7); LOAD(5, c + PLANE);
            STEPS;
            PRODUCT(0, 4, 6); PRODUCT(2, 5, 6); LOAD(6, b); PRODUCT(1, 4, 7); PRODUCT(3, 5, 7); LOAD(7, d);
            PRODUCT(0, 4, 6); PRODUCT(1, 4, 7); LOAD(4, a); PRODUCT(2, 5, 6); PRODUCT(3, 5, 7); LOAD(5, c);
            STEPS;
            PRODUCT(0, 4, 6); PRODUCT(1, 4, 7); LOAD(4, a + 2 * PLANE); PRODUCT(2, 5, 6); PRODUCT(3, 5, 7);
            LOAD(5, c + 2 * PLANE);
            PRODUCT(0, 4, 6); PRODUCT(2, 5, 6); PRODUCT(1, 4, 7); PRODUCT(3, 5, 7);
            STEPS;
        }
        if (is == NOTHING && k % 4 == 1) _tile_stored(7, out, 64); /* without any store meanwhile the last ones take longer */
    }
    _tile_stored(0, out, 128); _tile_stored(1, out + 16, 128);
    _tile_stored(2, out + 16 * 32, 128); _tile_stored(3, out + 16 * 32 + 16, 128);
    MEMORY;
}

/* 32 x 32 numbers of a product of `depth` tiles of rows in `a` and of pairs in `b`, of which the other 16 rows and columns
 * lie `next_a` and `next_b` further. The vector units, which would be idle, finish block j of `whole` meanwhile, unless j is
 * negative. */
static void product_32(const Half *a, int64_t next_a, const Half *b, int64_t next_b, int64_t depth, float *out,
                       const Block *whole, int64_t j, const float *from, Gates gates) {
    const int is = j < 0 ? NOTHING : is_block(whole, j);
#define ONE(is, gates) product_and(a, next_a, b, next_b, depth, out, whole, j, from, is, gates)
#define CASE(is) case is: ONE(is, NONE); return
#define ROWS_CASE(is) case is: ONE(is, ROWS_ARE); return
#define PAIRS_CASE(is) case is: ONE(is, PAIRS_ARE); return
    if (gates == ROWS_ARE)
        switch (is) {
            USUAL_OF_GATED_ROWS(ROWS_CASE);
        default: ONE(NOTHING, ROWS_ARE);
        }
    else if (gates == PAIRS_ARE)
        switch (is) {
            USUAL_OF_GATED_PAIRS(PAIRS_CASE);
        default: ONE(NOTHING, PAIRS_ARE);
        }
    else
        switch (is) {
            USUAL(CASE);
        default: ONE(NOTHING, NONE);
        }
    if (j >= 0) finish_block(whole, j, from);
#undef ONE
#undef CASE
#undef ROWS_CASE
#undef PAIRS_CASE
}

#endif
#endif

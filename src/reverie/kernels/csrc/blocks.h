/* Blocks of 32 x 32 numbers: products of tiles (tiles.h), and what is done with each finished block.
 *
 * The matrix unit leaves the vector units idle. So the vector units finish one block while the next one is computed: they
 * add a bias, apply ReLU, and convert the numbers to tiles for the next product.
 */

#ifndef REVERIE_BLOCKS_H
#define REVERIE_BLOCKS_H

#include "tiles.h"

#ifdef HAVE_TILES

/* ---------------------------------------------------------------------- finishing a product */

enum { SIDE = 32, SQUARE = SIDE * SIDE }; /* rows and numbers of a block, the unit of work */

/* Computed numbers [rows, columns], and what is done with them; every pointer but `from` may be null. */
typedef struct {
    const float *from;              /* the numbers; their rows lie `ld_from` apart */
    const float *scale, *times;     /* factors of the rows [rows], also of the mask's, and of the columns [columns] */
    const float *bias, *mask, *old; /* bias [columns] is added; numbers become 0 where mask is 0; `old` is added */
    float *to, *sums;               /* outputs: the numbers, and their sums over rows [columns]; mask, old, to: `ld` apart */
    Half *tiles, *pairs, *kept;     /* outputs: rows of tiles; pairs; the mask's numbers as rows of the transposed matrix */
    int64_t ld_from, ld, rows, columns;
    int64_t next, next_pairs; /* offsets of the second 16 rows of tiles, and of the second 16 columns of pairs and kept */
    int is;                   /* the flags below */
} Block;

enum { NOTHING = 0, TWO = 1, BIASED = 2, RELUS = 4, MASKED = 8, ADDED = 16, STORED = 32, SUMMED = 64, TILED_ROWS = 128,
       PAIRED = 256, KEPT = 512, DOWN = 1024, PART = 2048, UPPER = 4096, LOWER = 8192, SCALED = 16384, TIMES = 32768 };
       /* TWO: the numbers are the sum of two consecutive blocks; DOWN: blocks follow each other along the rows;
       PART: the block is smaller than 32 x 32; UPPER, LOWER: only that half of the rows is finished now */

/* Set the flags of a block that is not at the edge. `others` are the flags that do not follow from its pointers. */
static inline Block described(Block b, int others) {
    b.is = others | (b.bias ? BIASED : 0) | (b.mask ? MASKED : 0) | (b.old ? ADDED : 0) | (b.to ? STORED : 0) |
           (b.sums ? SUMMED : 0) | (b.tiles ? TILED_ROWS : 0) | (b.pairs ? PAIRED : 0) | (b.kept ? KEPT : 0) |
           (b.scale ? SCALED : 0) | (b.times ? TIMES : 0);
    return b;
}

/* The flags of block j of `whole`. */
static inline int is_block(const Block *whole, int64_t j) {
    int64_t down = whole->is & DOWN ? j : 0, along = whole->is & DOWN ? 0 : j;
    return whole->is | (whole->rows - SIDE * down < SIDE || whole->columns - SIDE * along < SIDE ? PART : 0);
}

/* Block j of `whole`, with the flags `is`. It stays in registers: a load that follows its own store would wait for all
 * earlier stores, such as those of the product that has just begun. */
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

/* A rounded product: otherwise some compilers fuse it with a following sum, and others do not. */
static inline __attribute__((always_inline)) __m512 times(__m512 a, __m512 b) {
    a = _mm512_mul_ps(a, b);
    __asm__("" : "+v"(a));
    return a;
}

/* Finish two rows of a block with the flags `is`, which are a compile-time constant in the usual cases. NaN stays NaN. */
static inline __attribute__((always_inline)) void finish_pair(const Block *b, int64_t pair, const int is) {
    __mmask16 all[2] = {0xffff, 0xffff};
    __m512 x[2][2], let[2][2] = {{_mm512_setzero_ps(), _mm512_setzero_ps()}, {_mm512_setzero_ps(), _mm512_setzero_ps()}};
    for (int h = 0; h < 2; h++)
        for (int o = 0; o < 2; o++) {
            int64_t r = 2 * pair + o, at = r * b->ld_from + 16 * h, to = r * b->ld + 16 * h;
            if (is & PART) all[h] = r < b->rows ? first_item(b->columns - 16 * h) : 0;
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
            if (is & PART) all[h] = first_item(b->columns - 16 * h);
            __m512 sum = pair ? some(b->sums + 16 * h, all[h]) : _mm512_setzero_ps();
            sum = _mm512_add_ps(_mm512_add_ps(sum, x[0][h]), x[1][h]);
            _mm512_mask_storeu_ps(b->sums + 16 * h, all[h], sum);
        }
    }
}

/* The range [first, end) of the steps in which a block is finished. */
static inline __attribute__((always_inline)) int64_t first_step(const int is) { return is & LOWER ? 8 : 0; }

static inline __attribute__((always_inline)) int64_t end_step(const int is) {
    return is == NOTHING ? 0 : is & UPPER ? 8 : is & KEPT ? 16 + 2 * PLANES : 16;
}

static inline __attribute__((always_inline)) void finish_step(const Block *b, int64_t step, const int is) {
    if (step < 16) finish_pair(b, step, is);
    else transpose_plane(b->kept + (step - 16) / PLANES * b->next_pairs + (step - 16) % PLANES * PLANE);
}

/* The usual combinations of flags. */
#define USUAL(CASE) \
    CASE(BIASED | RELUS | STORED | TILED_ROWS); CASE(BIASED | RELUS | TILED_ROWS); CASE(BIASED | RELUS | STORED); \
    CASE(BIASED | STORED); CASE(MASKED | PAIRED | KEPT | SUMMED); CASE(MASKED | PAIRED | KEPT | SUMMED | TILED_ROWS); \
    CASE(MASKED | PAIRED | SUMMED | TILED_ROWS); CASE(MASKED | TILED_ROWS); CASE(STORED); CASE(ADDED | STORED); \
    CASE(STORED | DOWN); \
    CASE(STORED | DOWN | TWO | UPPER); CASE(STORED | DOWN | TWO | LOWER)

/* The usual combinations where one of the factors is gates. */
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
#define MEMORY __asm__ volatile("" ::: "memory") /* compilers do not know which memory tile instructions read and write */

/* Which of the two factors are gates: numbers 0 or 1, which need only one plane. */
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
        if (is == NOTHING && k % 4 == 1) _tile_stored(7, out, 64); /* without a store in between, the last stores take longer */
    }
    _tile_stored(0, out, 128); _tile_stored(1, out + 16, 128);
    _tile_stored(2, out + 16 * 32, 128); _tile_stored(3, out + 16 * 32 + 16, 128);
    MEMORY;
}

/* Multiply `depth` tiles of rows in `a` with tiles of pairs in `b` to 32 x 32 numbers. The second 16 rows of a and columns
 * of b lie `next_a` and `next_b` further. At the same time, the vector units finish block j of `whole`, unless j is
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

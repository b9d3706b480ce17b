/* Products of float32 matrices by the matrix units of Intel's processors (AMX), which multiply bfloat16 alone.
 *
 * A float32 is the sum of three bfloat16, exactly: its 24 bits are three times 8. So a product of two is the sum of nine,
 * of which the three least are below its last bit. The other six are sums in float32 of exact products, as those of the
 * vector units are; a matrix unit does them in a third of the time. Infinity becomes NaN.
 *
 * A tile is 16 rows of 32 numbers, or the 32 rows of 16 columns as 16 rows of pairs, below each other in the matrix. In
 * memory the tiles of one after the other 32 along the depth of a product follow each other, with three planes each.
 */

#ifndef REVERIE_TILES_H
#define REVERIE_TILES_H

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && \
    defined(__linux__) && defined(__x86_64__)
#define HAVE_TILES

#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DEPTH = 32, PLANE = 16 * DEPTH, UNIT = 3 * PLANE }; /* of a tile, in bfloat16 */

typedef uint16_t Half;

/* Linux gives the registers to those who ask. */
static int tiles_granted(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0; }

/* Before the first product of a thread; another library may have arranged the registers otherwise. */
static inline void tiles_begin(void) {
    static const struct __attribute__((aligned(64))) {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}}; /* of all eight registers */
    _tile_loadconfig(&shape);
}

static inline void tiles_end(void) { _tile_release(); }

/* The nearest bfloat16. Some NaN become other numbers, but what they then leave is NaN. */
static inline __attribute__((always_inline)) __m512 rounded(__m512 x) {
    __m512i up = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000)));
}

/* Numbers as three planes of bfloat16, still in float32: each what the ones before leave, rounded. */
static inline __attribute__((always_inline)) void split(__m512 x, __m512 planes[3]) {
    planes[0] = rounded(x);
    x = _mm512_sub_ps(x, planes[0]);
    planes[1] = rounded(x);
    planes[2] = _mm512_sub_ps(x, planes[1]);
}

static inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

static inline __mmask16 first_of(int64_t count) {
    return count >= 16 ? 0xffff : count > 0 ? (__mmask16)((1 << count) - 1) : 0;
}

/* A row of a tile, of 32 numbers. */
static inline __attribute__((always_inline)) void store_row(__m512 low, __m512 high, Half *row) {
    __m512 a[3], b[3];
    split(low, a), split(high, b);
    for (int p = 0; p < 3; p++) _mm512_store_si512(row + p * PLANE, (__m512i)_mm512_cvtne2ps_pbh(b[p], a[p]));
}

/* A row of pairs, of 16 numbers and the 16 below them. */
static inline __attribute__((always_inline)) void store_pairs(__m512 even, __m512 odd, Half *row) {
    __m512 a[3], b[3];
    split(even, a), split(odd, b);
    for (int p = 0; p < 3; p++) {
        __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a[p]), 16);
        _mm512_store_si512(row + p * PLANE, _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(b[p])));
    }
}

/* A tile of up to 16 rows of x and 32 columns, row by row; what is beyond them is 0. */
static inline void rows_tile(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tile) {
    __mmask16 low = first_of(columns), high = first_of(columns - 16);
    for (int64_t r = 0; r < 16; r++, x += ld)
        store_row(_mm512_maskz_loadu_ps(r < rows ? low : 0, x), _mm512_maskz_loadu_ps(r < rows ? high : 0, x + 16),
                  tile + r * DEPTH);
}

/* A tile of up to 32 rows of x and 16 columns, two rows at a time, column by column. */
static inline void pairs_tile(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tile) {
    __mmask16 mask = first_of(columns);
    for (int64_t r = 0; r < 32; r += 2, x += 2 * ld)
        store_pairs(_mm512_maskz_loadu_ps(r < rows ? mask : 0, x), _mm512_maskz_loadu_ps(r + 1 < rows ? mask : 0, x + ld),
                    tile + r / 2 * DEPTH);
}

/* 16 x 16 pairs of a plane as columns: makes of the one kind of tile the other kind of the transposed matrix. */
static inline void transpose_plane(Half *plane) {
    __m512i *row = (__m512i *)plane, a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) {
            a[i + 2 * k] = _mm512_unpacklo_epi64(b[i + k], b[i + 2 + k]);
            a[i + 2 * k + 1] = _mm512_unpackhi_epi64(b[i + k], b[i + 2 + k]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int k = 0; k < 4; k++) {
            b[i + k] = _mm512_shuffle_i32x4(a[i + k], a[i + 4 + k], 0x88);
            b[i + 4 + k] = _mm512_shuffle_i32x4(a[i + k], a[i + 4 + k], 0xdd);
        }
    for (int k = 0; k < 8; k++) {
        row[k] = _mm512_shuffle_i32x4(b[k], b[8 + k], 0x88);
        row[8 + k] = _mm512_shuffle_i32x4(b[k], b[8 + k], 0xdd);
    }
}

static inline void transpose_tile(Half *tile) {
    for (int p = 0; p < 3; p++) transpose_plane(tile + p * PLANE);
}

/* ---------------------------------------------------------------------- what becomes of a product */

/* A block of [rows, columns], at most 32 x 32, that were computed, and all that becomes of it: each of these may be absent. */
typedef struct {
    const float *from, *second;     /* the numbers, as rows `ld_from` apart; `second`, to be added, lies likewise */
    const float *bias, *mask, *old; /* bias [columns] is added; where mask is 0 they become 0; `old` is added */
    float *to, *sums;               /* as they are, mask, old and to being rows `ld` apart; [columns] of all rows */
    Half *tiles, *pairs, *kept;     /* as rows of tiles; as pairs; the mask's numbers as rows of the transposed matrix */
    int64_t ld_from, ld, rows, columns, relu;
    int64_t next, next_pairs;       /* where the second 16 rows of tiles are, and the second 16 columns of pairs and kept */
    int is;
} Block;

enum { SECOND = 1, BIASED = 2, RELUS = 4, MASKED = 8, ADDED = 16, STORED = 32, SUMMED = 64, TILED_ROWS = 128, PAIRED = 256,
       KEPT = 512, PART = 1024 }; /* what a block has; PART: fewer than 32 rows or columns */

/* Block j along the columns of `whole`, whose `columns` may be more than 32; `from` are its own numbers. */
static inline Block block_at(const Block *whole, int64_t j, const float *from) {
    Block b = *whole;
    int64_t at = 32 * j;
    b.from = from;
    b.columns = b.columns - at < 32 ? b.columns - at : 32;
    b.is = (b.rows < 32 || b.columns < 32 ? PART : 0) | (b.relu ? RELUS : 0) | (b.second ? SECOND : 0);
    if (b.bias) b.is |= BIASED, b.bias += at;
    if (b.mask) b.is |= MASKED, b.mask += at;
    if (b.old) b.is |= ADDED, b.old += at;
    if (b.to) b.is |= STORED, b.to += at;
    if (b.sums) b.is |= SUMMED, b.sums += at;
    if (b.tiles) b.is |= TILED_ROWS, b.tiles += j * UNIT;
    if (b.pairs) b.is |= PAIRED, b.pairs += 2 * j * b.next_pairs;
    if (b.kept) b.is |= KEPT, b.kept += 2 * j * b.next_pairs;
    return b;
}

static inline __attribute__((always_inline)) __m512 some(const float *x, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, x);
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
            if (is & SECOND) x[o][h] = _mm512_add_ps(x[o][h], some(b->second + at, all[h]));
            if (is & BIASED) x[o][h] = _mm512_add_ps(x[o][h], some(b->bias + 16 * h, all[h]));
            if (is & RELUS) x[o][h] = _mm512_max_ps(_mm512_setzero_ps(), x[o][h]);
            if (is & MASKED) {
                let[o][h] = some(b->mask + to, all[h]);
                __mmask16 through = _mm512_cmp_ps_mask(let[o][h], _mm512_setzero_ps(), _CMP_NEQ_UQ);
                x[o][h] = _mm512_maskz_mov_ps(through, x[o][h]);
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

/* A block is finished in so many steps. */
static inline __attribute__((always_inline)) int64_t steps_of(const int is) { return is & KEPT ? 16 + 6 : is ? 16 : 0; }

static inline __attribute__((always_inline)) void finish_step(const Block *b, int64_t step, const int is) {
    if (step < 16) finish_pair(b, step, is);
    else transpose_plane(b->kept + (step - 16) / 3 * b->next_pairs + (step - 16) % 3 * PLANE);
}

/* What blocks usually have. */
#define USUAL(CASE)                                                                                                            \
    CASE(BIASED | RELUS | STORED | TILED_ROWS); CASE(BIASED | RELUS | STORED); CASE(BIASED | STORED);                         \
    CASE(MASKED | PAIRED | KEPT | SUMMED); CASE(MASKED | PAIRED | KEPT | SUMMED | TILED_ROWS); CASE(MASKED | TILED_ROWS);     \
    CASE(MASKED | PAIRED | SUMMED | TILED_ROWS); CASE(STORED); CASE(STORED | SECOND)

static inline __attribute__((always_inline)) void finish_all(const Block *b, const int is) {
    for (int64_t step = 0; step < steps_of(is); step++) finish_step(b, step, is);
}

static void finish_block(const Block *b) {
#define CASE(is) case is: finish_all(b, is); break
    switch (b->is) {
        USUAL(CASE);
    default: finish_all(b, b->is);
    }
#undef CASE
}

/* ---------------------------------------------------------------------- products */

#define LOAD(tile, from) _tile_loadd(tile, (from), 64)
#define PRODUCT(sum, a, b) _tile_dpbf16ps(sum, a, b)
#define MEMORY __asm__ volatile("" ::: "memory") /* compilers do not know what tiles are loaded from and stored to */

static inline __attribute__((always_inline)) void product_and(const Half *a, int64_t next_a, const Half *b, int64_t next_b,
                                                              int64_t depth, float *out, const Block *given, const int is) {
    const Block before = is ? *given : (Block){0};
    const Half *c = a + next_a, *d = b + next_b;
    int64_t each = (steps_of(is) + 3 * depth - 1) / (3 * depth), step = 0;
#define STEPS                                                                                                                  \
    for (int64_t end = least_of(step + each, steps_of(is)); step < end; step++) finish_step(&before, step, is);                \
    MEMORY
    MEMORY;
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t k = 0; k < depth; k++, a += UNIT, b += UNIT, c += UNIT, d += UNIT) {
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
        if (!is && k % 4 == 3) _tile_stored(7, out, 64); /* of no use but that the last four then take a fifth less */
    }
    _tile_stored(0, out, 128); _tile_stored(1, out + 16, 128);
    _tile_stored(2, out + 16 * 32, 128); _tile_stored(3, out + 16 * 32 + 16, 128);
    MEMORY;
}

/* 32 x 32 numbers of a product of `depth` tiles of rows in `a` and of pairs in `b`, of which the other 16 rows and columns
 * lie `next_a` and `next_b` further. The vector units, which would be idle, finish the block before meanwhile, if there is
 * one. */
static void product_32(const Half *a, int64_t next_a, const Half *b, int64_t next_b, int64_t depth, float *out,
                       const Block *before) {
#define CASE(is) case is: product_and(a, next_a, b, next_b, depth, out, before, is); break
    switch (before ? before->is : 0) {
        USUAL(CASE);
    default:
        product_and(a, next_a, b, next_b, depth, out, 0, 0);
        if (before) finish_block(before);
    }
#undef CASE
}

#endif
#endif

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

static inline __m512 widened(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* 32 numbers as three planes of bfloat16, each what the ones before leave, rounded. */
static inline void split(__m512 a, __m512 b, __m512i planes[3]) {
    for (int p = 0; p < 3; p++) {
        __m512i h = (__m512i)_mm512_cvtne2ps_pbh(b, a);
        planes[p] = h;
        a = _mm512_sub_ps(a, widened(_mm512_castsi512_si256(h)));
        b = _mm512_sub_ps(b, widened(_mm512_extracti64x4_epi64(h, 1)));
    }
}

static inline __mmask16 first_of(int64_t count) {
    return count >= 16 ? 0xffff : count > 0 ? (__mmask16)((1 << count) - 1) : 0;
}

/* A tile of up to 16 rows of x and 32 columns, row by row; what is beyond them is 0. */
static inline void rows_tile(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tile) {
    __mmask16 low = first_of(columns), high = first_of(columns - 16);
    for (int64_t r = 0; r < 16; r++) {
        __m512i planes[3] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
        if (r < rows)
            split(_mm512_maskz_loadu_ps(low, x + r * ld), _mm512_maskz_loadu_ps(high, x + r * ld + 16), planes);
        for (int p = 0; p < 3; p++) _mm512_store_si512(tile + p * PLANE + r * DEPTH, planes[p]);
    }
}

/* A tile of up to 32 rows of x and 16 columns, two rows at a time, column by column. */
static inline void pairs_tile(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tile) {
    static const uint16_t order[32] __attribute__((aligned(64))) = {
        0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i mixed = _mm512_load_si512(order);
    __mmask16 mask = first_of(columns);
    for (int64_t r = 0; r < 16; r++) {
        __mmask16 even = 2 * r < rows ? mask : 0, odd = 2 * r + 1 < rows ? mask : 0;
        __m512i planes[3];
        split(_mm512_maskz_loadu_ps(even, x + 2 * r * ld), _mm512_maskz_loadu_ps(odd, x + (2 * r + 1) * ld), planes);
        for (int p = 0; p < 3; p++)
            _mm512_store_si512(tile + p * PLANE + r * DEPTH, _mm512_permutexvar_epi16(mixed, planes[p]));
    }
}

/* 16 x 16 pairs, or rows of a tile as columns: makes of the one kind of tile the other kind of the transposed matrix. */
static inline void transpose_tile(Half *tile) {
    for (int p = 0; p < 3; p++) {
        __m512i *row = (__m512i *)(tile + p * PLANE), a[16], b[16];
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
}

#define LEFT(a, b) _tile_loadd(4, (a), 64); _tile_loadd(5, (b), 64)
#define RIGHT(a, b) _tile_loadd(6, (a), 64); _tile_loadd(7, (b), 64)
#define ADD_PRODUCTS \
    _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7)

/* 32 x 32 numbers of a product of `depth` tiles of rows in `a` and of pairs in `b`. The other 16 rows and columns lie `next`
 * further. */
static inline void product_32(const Half *a, const Half *b, int64_t next, int64_t depth, float *out) {
    const Half *c = a + next, *d = b + next;
    __asm__ volatile("" ::: "memory"); /* compilers do not know what tiles are loaded from */
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t at = 0; at < depth * UNIT; at += UNIT) {
        LEFT(a + at, c + at);
        RIGHT(b + at + 2 * PLANE, d + at + 2 * PLANE); ADD_PRODUCTS;
        RIGHT(b + at + PLANE, d + at + PLANE); ADD_PRODUCTS;
        RIGHT(b + at, d + at); ADD_PRODUCTS;
        LEFT(a + at + PLANE, c + at + PLANE); ADD_PRODUCTS;
        RIGHT(b + at + PLANE, d + at + PLANE); ADD_PRODUCTS;
        LEFT(a + at + 2 * PLANE, c + at + 2 * PLANE); RIGHT(b + at, d + at); ADD_PRODUCTS;
    }
    _tile_stored(0, out, 128); _tile_stored(1, out + 16, 128);
    _tile_stored(2, out + 16 * 32, 128); _tile_stored(3, out + 16 * 32 + 16, 128);
    __asm__ volatile("" ::: "memory");
}

#endif
#endif

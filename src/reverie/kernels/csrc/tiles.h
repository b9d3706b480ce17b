/* Products of float32 matrices by the matrix units of Intel's processors (AMX), which multiply bfloat16 only.
 *
 * A float32 is exactly the sum of three bfloat16 (planes): its 24 bits are three times 8. So a product of two is the sum of
 * nine products, and the three smallest of these are below its last bit. The other six are exact products that are summed in
 * float32, as in the vector units; a matrix unit takes a third of the time. Infinity becomes NaN.
 *
 * A tile of rows has 16 rows of 32 numbers. A tile of pairs has 32 rows of 16 columns, stored as 16 rows of pairs of numbers
 * that are below each other in the matrix. In memory, tiles follow each other along the depth of a product, 32 numbers
 * each, and every tile has three planes.
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

enum { DEPTH = 32, PLANE = 16 * DEPTH, PLANES = 3, UNIT = PLANES * PLANE }; /* of a tile, in bfloat16 */

typedef uint16_t Half;

/* Ask Linux for permission to use the tile registers; whether it was granted. */
static int has_amx(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0; }

/* Configure the tile registers. Call it before the first product of a thread: another library may have changed them. */
static inline void tiles_begin(void) {
    static const struct __attribute__((aligned(64))) {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}}; /* of all eight registers */
    _tile_loadconfig(&shape);
}

static inline void tiles_end(void) { _tile_release(); }

/* Round to the nearest bfloat16. Some NaN become other numbers, but the remainder that split() computes is then NaN. */
static inline __attribute__((always_inline)) __m512 rounded(__m512 x) {
    __m512i up = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000)));
}

/* Split numbers into three planes of bfloat16, stored in float32: each is the rounded remainder of the previous ones. */
static inline __attribute__((always_inline)) void split(__m512 x, __m512 planes[PLANES]) {
    planes[0] = rounded(x);
    x = _mm512_sub_ps(x, planes[0]);
    planes[1] = rounded(x);
    planes[2] = _mm512_sub_ps(x, planes[1]);
}

static inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

static inline __mmask16 first_item(int64_t count) {
    return count >= 16 ? 0xffff : count > 0 ? (__mmask16)((1 << count) - 1) : 0;
}

/* Store a row of 32 numbers in a tile of rows. */
static inline __attribute__((always_inline)) void store_row(__m512 low, __m512 high, Half *row) {
    __m512 a[PLANES], b[PLANES];
    split(low, a), split(high, b);
    for (int p = 0; p < PLANES; p++) _mm512_store_si512(row + p * PLANE, (__m512i)_mm512_cvtne2ps_pbh(b[p], a[p]));
}

/* Store a row of a tile of pairs: 16 numbers and the 16 below them. */
static inline __attribute__((always_inline)) void store_pairs(__m512 even, __m512 odd, Half *row) {
    __m512 a[PLANES], b[PLANES];
    split(even, a), split(odd, b);
    for (int p = 0; p < PLANES; p++) {
        __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a[p]), 16);
        _mm512_store_si512(row + p * PLANE, _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(b[p])));
    }
}

/* Store up to 16 rows and 32 columns of x as a tile of rows, padded with zeros. */
static inline void rows_tile(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tile) {
    __mmask16 low = first_item(columns), high = first_item(columns - 16);
    for (int64_t r = 0; r < 16; r++, x += ld, tile += DEPTH)
        if (rows >= 16 && columns >= 32)
            store_row(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), tile);
        else
            store_row(_mm512_maskz_loadu_ps(r < rows ? low : 0, x), _mm512_maskz_loadu_ps(r < rows ? high : 0, x + 16), tile);
}

/* Store up to 32 rows and 16 columns of x as a tile of pairs, padded with zeros. */
static inline void pairs_tile(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tile) {
    __mmask16 mask = first_item(columns);
    for (int64_t r = 0; r < 32; r += 2, x += 2 * ld, tile += DEPTH)
        if (rows >= 32 && columns >= 16)
            store_pairs(_mm512_loadu_ps(x), _mm512_loadu_ps(x + ld), tile);
        else
            store_pairs(_mm512_maskz_loadu_ps(r < rows ? mask : 0, x), _mm512_maskz_loadu_ps(r + 1 < rows ? mask : 0, x + ld),
                        tile);
}

/* Transpose the 16 x 16 pairs of a plane: a tile of rows becomes a tile of pairs of the transposed matrix, or the reverse. */
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
    for (int p = 0; p < PLANES; p++) transpose_plane(tile + p * PLANE);
}

#endif
#endif

/* Copying rows between ring buffers and other memory, all columns in one call. Called by kernels/rows.py.
 *
 * The rings are described by a table of integers: the numbers of columns, streams, slots and blocks, and the indices of
 * the columns is_first and is_last (-1 if absent); then, for all columns each, the bytes of a row, the bytes from a row to
 * the next in its ring [streams, slots], and the address of the ring; then, for all blocks of memory each (a ring, or
 * several interleaved ones), the bytes from a row to the next and the address.
 */

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef struct {
    int64_t columns, streams, slots, places, first, last;
    const int64_t *bytes, *stride, *ring, *place_stride, *place;
} Rings;

static inline Rings rings_of(const int64_t *table) {
    int64_t columns = table[0];
    const int64_t *rest = table + 6, *places = rest + 3 * columns;
    Rings rings = {columns, table[1], table[2], table[3], table[4], table[5],
                   rest, rest + columns, rest + 2 * columns, places, places + table[3]};
    return rings;
}

/* memcpy, faster for the few bytes that most calls here copy. */
static inline void copy(char *restrict to, const char *restrict from, int64_t bytes) {
    switch (bytes) {
    case 1: *to = *from; return;
    case 2: memcpy(to, from, 2); return;
    case 4: memcpy(to, from, 4); return;
    case 8: memcpy(to, from, 8); return;
    }
    if (bytes < 16 || bytes > 256) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (int64_t i = 0; i + 16 < bytes; i += 16) memcpy(to + i, from + i, 16);
    memcpy(to + bytes - 16, from + bytes - 16, 16);
}

/* Large rows bypass the caches where the processor can do so: they are not read soon, and memory that is overwritten as a
 * whole need not be loaded first. */
static void keep(char *restrict to, const char *restrict from, int64_t bytes) {
    int64_t done = 0;
#ifdef __SSE2__
    if (bytes >= 4096 && ((uintptr_t)to & 15) == 0)
        for (; done + 64 <= bytes; done += 64)
            for (int64_t i = done; i < done + 64; i += 16)
                _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
#endif
    copy(to + done, from + done, bytes - done);
}

/* Copy one row of each stream, sources [streams, bytes] by column, into one slot of the rings. */
void put_rows(const int64_t *table, const char *const *sources, int64_t slot) {
    Rings r = rings_of(table);
    for (int64_t i = 0; i < r.streams; i++)
        for (int64_t c = 0; c < r.columns; c++) {
            char *ring = (char *)(intptr_t)r.ring[c];
            keep(ring + (i * r.slots + slot) * r.stride[c], sources[c] + i * r.bytes[c], r.bytes[c]);
        }
#ifdef __SSE2__
    _mm_sfence(); /* makes stores that bypassed the caches visible before other threads are notified */
#endif
}

/* Copy rows of each stream, sources [streams, count, bytes] by column, into the slots from `slot` on, not beyond the last
 * one. A column without a source is set to zeros. */
void extend_rows(const int64_t *table, const char *const *sources, int64_t count, int64_t slot) {
    enum { AT_ONCE = 256 }; /* rows whose memory stays in the cache until all columns are copied */
    Rings r = rings_of(table);
    for (int64_t i = 0; i < r.streams; i++)
        for (int64_t t = 0; t < count; t += AT_ONCE)
            for (int64_t c = 0, n = count - t < AT_ONCE ? count - t : AT_ONCE; c < r.columns; c++) {
                int64_t bytes = r.bytes[c], stride = r.stride[c];
                char *to = (char *)(intptr_t)r.ring[c] + (i * r.slots + slot + t) * stride;
                const char *from = sources[c] ? sources[c] + (i * count + t) * bytes : 0;
                if (!from)
                    for (int64_t k = 0; k < n; k++) memset(to + k * stride, 0, (size_t)bytes);
                else if (stride == bytes)
                    memcpy(to, from, (size_t)(n * bytes));
                else
                    for (int64_t k = 0; k < n; k++) copy(to + k * stride, from + k * bytes, bytes);
            }
}

/* a / b of integers. Division of 64-bit integers takes several times as long as of 32-bit ones. */
static inline int64_t quotient(int64_t a, int64_t b) {
    return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

/* Where a window begins: the number of its first row, the slot of that row, and the first slot of its stream. */
typedef struct { int64_t row, slot, stream; } Begin;

static inline Begin begin_of(const Rings *r, int64_t handle) {
    int64_t before = handle < 0 ? quotient(r->streams - 1 - handle, r->streams) : 0; /* number of rows before row 0 */
    int64_t row = quotient(handle + before * r->streams, r->streams);
    int64_t stream = handle + (before - row) * r->streams;
    Begin begin = {row - before, row - quotient(row, r->slots) * r->slots, stream * r->slots};
    return begin;
}

/* Copy one window of one column; rows before row 0 are copies of row 0. */
static void copy_window(char *to, const char *ring, int64_t bytes, int64_t stride, int64_t slots, Begin begin,
                        int64_t length) {
    int64_t t = 0, slot = begin.slot;
    ring += begin.stream * stride;
    for (; t < length && begin.row + t < 0; t++) copy(to + t * bytes, ring, bytes);
    while (t < length) {
        int64_t run = slots - slot < length - t ? slots - slot : length - t;
        if (stride == bytes)
            copy(to + t * bytes, ring + slot * bytes, run * bytes);
        else
            for (int64_t k = 0; k < run; k++) copy(to + (t + k) * bytes, ring + (slot + k) * stride, bytes);
        t += run;
        slot = 0;
    }
}

/* Copy window number w. Also set is_last where the next row is_first: a stream may have been cut without a last row. */
static void gather_window(const Rings *r, Begin begin, int64_t w, int64_t length, char *const *out) {
    for (int64_t c = 0; c < r->columns; c++) {
        const char *ring = (const char *)(intptr_t)r->ring[c];
        copy_window(out[c] + w * length * r->bytes[c], ring, r->bytes[c], r->stride[c], r->slots, begin, length);
    }
    if (r->first < 0 || r->last < 0) return;
    const char *first = out[r->first] + w * length;
    char *last = out[r->last] + w * length;
    for (int64_t t = 0; t + 1 < length; t++) last[t] |= first[t + 1];
}

/* Copy the windows of `length` rows that begin at `handles`: [windows, length, bytes] by column.
 *
 * Memory is prefetched some windows ahead, so that it arrives while others are copied; the hardware does so for long
 * windows. The prefetch is not in a separate function because GCC would remove a function that does nothing else. */
void gather_rows(const int64_t *table, const int64_t *handles, int64_t windows, int64_t length, char *const *out,
                 int threads) {
    enum { AHEAD = 8, MOST = 512 };
    Rings r = rings_of(table);
    if (threads > 1) {
#pragma omp parallel for num_threads(threads)
        for (int64_t w = 0; w < windows; w++) gather_window(&r, begin_of(&r, handles[w]), w, length, out);
        return;
    }
    Begin begins[AHEAD];
    for (int64_t w = -AHEAD; w < windows; w++) {
        Begin *at = &begins[(w + AHEAD) % AHEAD];
        if (w >= 0) gather_window(&r, *at, w, length, out);
        if (w + AHEAD >= windows) continue;
        *at = begin_of(&r, handles[w + AHEAD]);
        for (int64_t p = 0; p < r.places; p++) {
            int64_t stride = r.place_stride[p], size = stride * length < MOST ? stride * length : MOST;
            const char *from = (const char *)(intptr_t)r.place[p] + (at->stream + at->slot) * stride;
            for (int64_t i = 0; i < size + 63; i += 64) __builtin_prefetch(from + i);
        }
    }
}

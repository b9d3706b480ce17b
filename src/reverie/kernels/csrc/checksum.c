/* CRC32C (Castagnoli; RFC 3720, appendix B.4) of many pieces in one call, without the interpreter's lock. Called by
 * kernels/rows.py; tests compare it with google-crc32c. */

#include <stdint.h>
#include <string.h>
#if defined(__SSE4_2__) && defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

#if defined(__SSE4_2__) && defined(__x86_64__)
static inline uint32_t eight(uint32_t crc, uint64_t bytes) { return (uint32_t)_mm_crc32_u64(crc, bytes); }
static inline uint32_t one(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
#elif defined(__ARM_FEATURE_CRC32)
static inline uint32_t eight(uint32_t crc, uint64_t bytes) { return __crc32cd(crc, bytes); }
static inline uint32_t one(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
#else
/* Remainders of all four-bit values by the polynomial 0x82f63b78, which is 0x1edc6f41 with its bits reversed. */
static const uint32_t four[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};
static inline uint32_t one(uint32_t crc, uint8_t byte) {
    crc ^= byte;
    crc = (crc >> 4) ^ four[crc & 15];
    return (crc >> 4) ^ four[crc & 15];
}
static inline uint32_t eight(uint32_t crc, uint64_t bytes) {
    uint8_t each[8];
    memcpy(each, &bytes, 8);
    for (int i = 0; i < 8; i++) crc = one(crc, each[i]);
    return crc;
}
#endif

void checksums(const uint8_t *const *pieces, const int64_t *sizes, uint32_t *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *piece = pieces[i];
        uint32_t crc = 0xffffffffu;
        int64_t done = 0;
        for (uint64_t bytes; done + 8 <= sizes[i]; done += 8) {
            memcpy(&bytes, piece + done, 8);
            crc = eight(crc, bytes);
        }
        for (; done < sizes[i]; done++) crc = one(crc, piece[done]);
        out[i] = ~crc;
    }
}

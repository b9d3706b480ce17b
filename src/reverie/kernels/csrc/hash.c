/* A hash that detects changes of weights: kernels/packing.py calls it. */

#include <stdint.h>

/* A cheap hash of up to 16 numbers of each array, evenly spread, to detect changes. */
void sample_bits(const uint32_t *const *arrays, const int64_t *sizes, int64_t count, uint64_t *out) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t picks = sizes[i] < 16 ? sizes[i] : 16;
        for (int64_t k = 0; k < picks; k++) hash = (hash ^ arrays[i][k * sizes[i] / picks]) * 0x100000001b3u;
    }
    *out = hash;
}

/* The gradients of a convolution whose output is max-pooled, for kernels/images.py.
 *
 * After 2 x 2 max-pooling, only one pixel in four of a convolution's output has a gradient, a different one in each
 * channel. The functions here skip the others, which leaves a quarter of the multiplications. Images are float32
 * [images, height, width, channels], contiguous; pooled images are [images, ceil(height / 2), ceil(width / 2),
 * channels]. `which` is the position of each maximum: 2 * row + column.
 */

#include <stdint.h>
#include <string.h>

#include "lanes.h"

enum {
    FULL = 16,           /* rows of windows are padded to multiples of this many numbers */
    STRETCH = 10 * FULL, /* numbers in a block, a part of a window that is processed together */
    BLOCK = STRETCH / LANES,
    HELD = 10, /* vectors kept in registers: fewer leave the multipliers idle, more do not fit */
    GROUP = 32 /* pooled pixels processed together, so that their windows fit into the first-level cache */
};

/* The sizes of a convolution. Its input has `channels` numbers per pixel, a border of zeros and an unused row below. */
typedef struct {
    int64_t height, width, channels, outputs, kernel;
    int64_t row;    /* numbers in a row of the input, border included */
    int64_t run;    /* vectors in a row of a window */
    int64_t half;   /* pooled pixels in a row */
    int64_t pooled; /* pooled pixels in an image */
    int64_t blocks; /* blocks of BLOCK vectors in a window */
} Stage;

static Stage stage(int64_t height, int64_t width, int64_t channels, int64_t outputs, int64_t kernel) {
    Stage s = {.height = height, .width = width, .channels = channels, .outputs = outputs, .kernel = kernel};
    s.row = (width + kernel - 1) * channels;
    s.run = (kernel * channels + FULL - 1) / FULL * (FULL / LANES);
    s.half = (width + 1) / 2;
    s.pooled = (height + 1) / 2 * s.half;
    s.blocks = (kernel * s.run + BLOCK - 1) / BLOCK;
    return s;
}

/* The offset of the window of a pooled pixel's first pixel. */
static int64_t window(const Stage *s, int64_t pixel) {
    return pixel / s->half * 2 * s->row + pixel % s->half * 2 * s->channels;
}

/* The offsets in a window of the vectors of a block; vectors beyond the last one are in the row below the window. */
static void offsets(const Stage *s, int64_t block, int64_t *offset) {
    for (int64_t b = 0; b < BLOCK; b++) {
        int64_t v = block * BLOCK + b;
        offset[b] = v < s->kernel * s->run ? v / s->run * s->row + v % s->run * LANES : s->kernel * s->row;
    }
}

/* The number of vectors of a block that are in the window. */
static int64_t filled(const Stage *s, int64_t block) {
    int64_t left = s->kernel * s->run - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static void add_border(const Stage *s, const float *x, float *padded) {
    int64_t reach = s->kernel / 2, line = s->width * s->channels;
    memset(padded, 0, (s->height + s->kernel) * s->row * sizeof(float));
    for (int64_t i = 0; i < s->height; i++)
        memcpy(padded + (i + reach) * s->row + reach * s->channels, x + i * line, line * sizeof(float));
}

/* ------------------------------------------------------------------ gradient of the weights */

/* at[p, output]: the offset of the window that the gradient of a pooled pixel belongs to, for `count` pooled pixels. */
static void list_windows(const Stage *s, const uint8_t *which, int64_t first, int64_t count, int32_t *at) {
    int32_t right = (int32_t)s->channels, down = (int32_t)s->row;
    for (int64_t p = 0; p < count; p++, at += s->outputs, which += s->outputs) {
        int32_t start = (int32_t)window(s, first + p);
        for (int64_t k = 0; k < s->outputs; k++) at[k] = start + (which[k] >> 1) * down + (which[k] & 1) * right;
    }
}

/* sum += value[p] times the vectors at padded[at[p] + offset], for `count` p that are `step` numbers apart. `width` is
 * a compile-time constant. */
static inline __attribute__((always_inline)) void add_windows(const float *padded, const float *value,
                                                              const int32_t *at, const int64_t *offset, float *sum,
                                                              int64_t count, int64_t step, const int width) {
    lanes total[HELD];
    for (int b = 0; b < width; b++) total[b] = *(const lanes *)(sum + b * LANES);
    for (int64_t p = 0; p < count * step; p += step)
        for (int b = 0; b < width; b++) total[b] += value[p] * *(const lanes *)(padded + at[p] + offset[b]);
    for (int b = 0; b < width; b++) *(lanes *)(sum + b * LANES) = total[b];
}

static void group_weight_gradient(const Stage *s, const float *padded, const float *dp, const int32_t *at, float *dw,
                                  int64_t count) {
    for (int64_t block = 0; block < s->blocks; block++) {
        int64_t offset[BLOCK];
        offsets(s, block, offset);
        for (int64_t k = 0; k < s->outputs; k++, dw += STRETCH)
            for (int64_t b = 0; b < filled(s, block); b += HELD)
                if (filled(s, block) - b <= HELD / 2)
                    add_windows(padded, dp + k, at + k, offset + b, dw + b * LANES, count, s->outputs, HELD / 2);
                else
                    add_windows(padded, dp + k, at + k, offset + b, dw + b * LANES, count, s->outputs, HELD);
    }
}

/* Compute dw [threads, blocks, outputs, STRETCH], which must contain zeros, from x and the gradient dp of the pooled
 * pixels. `scratch` is [threads, size]: two lists of GROUP * outputs, and the input with its border. */
void pooled_weight_gradient(const float *x, const float *dp, const uint8_t *which, float *dw, float *scratch,
                            int64_t size, int64_t images, int64_t height, int64_t width, int64_t channels,
                            int64_t outputs, int64_t kernel, int threads) {
    Stage s = stage(height, width, channels, outputs, kernel);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        int32_t *at = (int32_t *)(scratch + t * size);
        float *padded = scratch + t * size + 2 * GROUP * outputs, *sum = dw + t * s.blocks * outputs * STRETCH;
        for (int64_t m = images * t / threads; m < images * (t + 1) / threads; m++) {
            add_border(&s, x + m * height * width * channels, padded);
            for (int64_t first = 0; first < s.pooled; first += GROUP) {
                int64_t count = first + GROUP < s.pooled ? GROUP : s.pooled - first;
                int64_t from = (m * s.pooled + first) * outputs;
                list_windows(&s, which + from, first, count, at);
                group_weight_gradient(&s, padded, dp + from, at, sum, count);
            }
        }
    }
}

/* ------------------------------------------------------------------ gradient of the input */

/* Sort a pooled pixel's gradients and output channels by `which`; those of corner q are at [start[q], start[q + 1]). */
static void sort_by_corner(const float *dp, const uint8_t *which, int64_t outputs, float *value, int32_t *output,
                           int32_t *start) {
    int32_t next[5];
    memset(start, 0, 5 * sizeof(int32_t));
    for (int64_t k = 0; k < outputs; k++) start[which[k] + 1]++;
    for (int q = 0; q < 4; q++) start[q + 1] += start[q];
    memcpy(next, start, sizeof next);
    for (int64_t k = 0; k < outputs; k++) {
        int32_t n = next[which[k]]++;
        value[n] = dp[k];
        output[n] = (int32_t)k;
    }
}

/* Add the gradients from `count` output channels to the vectors of one window. */
static void add_outputs(const float *weight, const float *value, const int32_t *output, const int64_t *offset,
                        float *at, int64_t count) {
    lanes total[HELD];
    for (int b = 0; b < HELD; b++) total[b] = *(const lanes *)(at + offset[b]);
    for (int64_t n = 0; n < count; n++) {
        const float *w = weight + output[n] * (int64_t)STRETCH;
        for (int b = 0; b < HELD; b++) total[b] += value[n] * *(const lanes *)(w + b * LANES);
    }
    for (int b = 0; b < HELD; b++) *(lanes *)(at + offset[b]) = total[b];
}

static void group_input_gradient(const Stage *s, const float *weight, const float *value, const int32_t *output,
                                 int32_t (*start)[5], float *padded, int64_t first, int64_t count) {
    int64_t corner[4] = {0, s->channels, s->row, s->row + s->channels};
    for (int64_t block = 0; block < s->blocks; block++, weight += s->outputs * STRETCH) {
        int64_t offset[BLOCK];
        offsets(s, block, offset);
        for (int64_t p = 0; p < count; p++)
            for (int q = 0; q < 4; q++) {
                int64_t from = p * s->outputs + start[p][q], many = start[p][q + 1] - start[p][q];
                float *at = padded + window(s, first + p) + corner[q];
                for (int64_t b = 0; many && b < BLOCK; b += HELD)
                    add_outputs(weight + b * LANES, value + from, output + from, offset + b, at, many);
            }
    }
}

static void remove_border(const Stage *s, const float *padded, float *x, int64_t channels) {
    int64_t reach = s->kernel / 2;
    for (int64_t i = 0; i < s->height; i++)
        for (int64_t j = 0; j < s->width; j++, x += channels)
            memcpy(x, padded + (i + reach) * s->row + (j + reach) * s->channels, channels * sizeof(float));
}

/* Compute dx from the gradient dp of the pooled pixels. `weight` is [blocks, outputs, STRETCH], for pixels whose
 * channels are padded to whole vectors. `scratch` is [threads, size]: two lists of GROUP * outputs, and dx with its
 * border. */
void pooled_input_gradient(const float *weight, const float *dp, const uint8_t *which, float *dx, float *scratch,
                           int64_t size, int64_t images, int64_t height, int64_t width, int64_t channels,
                           int64_t outputs, int64_t kernel, int threads) {
    Stage s = stage(height, width, (channels + FULL - 1) / FULL * FULL, outputs, kernel);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        float *value = scratch + t * size, *padded = value + 2 * GROUP * outputs;
        int32_t *output = (int32_t *)(value + GROUP * outputs), start[GROUP][5];
        for (int64_t m = images * t / threads; m < images * (t + 1) / threads; m++) {
            memset(padded, 0, (height + kernel) * s.row * sizeof(float));
            for (int64_t first = 0; first < s.pooled; first += GROUP) {
                int64_t count = first + GROUP < s.pooled ? GROUP : s.pooled - first;
                for (int64_t p = 0; p < count; p++) {
                    int64_t from = (m * s.pooled + first + p) * outputs, to = p * outputs;
                    sort_by_corner(dp + from, which + from, outputs, value + to, output + to, start[p]);
                }
                group_input_gradient(&s, weight, value, output, start, padded, first, count);
            }
            remove_border(&s, padded, dx + m * height * width * channels, channels);
        }
    }
}

/* Gradients of a convolution whose output is max-pooled, for nn/stages.py.
 *
 * After 2 x 2 max-pooling, one pixel in four of a convolution's output has a gradient, in each channel another one. The
 * gradients below visit no others, in a quarter of the multiplications. Images are float32 [images, height, width,
 * channels] without gaps, what is pooled is [images, ceil(height / 2), ceil(width / 2), channels]; `which` says where
 * each maximum was: 2 * row + column.
 */

#include <stdint.h>
#include <string.h>

enum {
    LANES = 16, /* numbers in a vector */
    BLOCK = 10, /* vectors that are kept in registers at once: fewer leave the multipliers idle, more do not fit */
    GROUP = 32  /* pooled pixels that are gone through together: their windows fit into the first cache */
};

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* A convolution, its input having `channels` numbers a pixel and a border of zeros; one more row below is never used. */
typedef struct {
    int64_t height, width, channels, outputs, kernel;
    int64_t row;          /* numbers in a row of the input, border included */
    int64_t run;          /* vectors in a row of a window */
    int64_t half;         /* pooled pixels in a row */
    int64_t pooled;       /* pooled pixels in an image */
    int64_t blocks;       /* of BLOCK vectors, in a window */
} Stage;

static Stage stage(int64_t height, int64_t width, int64_t channels, int64_t outputs, int64_t kernel) {
    Stage s = {height, width, channels, outputs, kernel};
    s.row = (width + kernel - 1) * channels;
    s.run = (kernel * channels + LANES - 1) / LANES;
    s.half = (width + 1) / 2;
    s.pooled = (height + 1) / 2 * s.half;
    s.blocks = (kernel * s.run + BLOCK - 1) / BLOCK;
    return s;
}

/* Where the window of a pooled pixel's first pixel begins. */
static int64_t window(const Stage *s, int64_t pixel) {
    return pixel / s->half * 2 * s->row + pixel % s->half * 2 * s->channels;
}

/* Where the vectors of a block begin, counted from the window; those beyond the last one in the row below the window. */
static void offsets(const Stage *s, int64_t block, int64_t *offset) {
    for (int64_t b = 0; b < BLOCK; b++) {
        int64_t v = block * BLOCK + b;
        offset[b] = v < s->kernel * s->run ? v / s->run * s->row + v % s->run * LANES : s->kernel * s->row;
    }
}

/* Vectors of a block that are in the window. */
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

/* For each output, the gradients of `count` pooled pixels and where the windows are that they belong to. */
static void list_by_output(const Stage *s, const float *dp, const uint8_t *which, int64_t first, int64_t count,
                           float *value, int32_t *at) {
    int64_t corner[4] = {0, s->channels, s->row, s->row + s->channels};
    for (int64_t p = 0; p < count; p++) {
        int64_t start = window(s, first + p), from = (first + p) * s->outputs;
        for (int64_t k = 0; k < s->outputs; k++) {
            value[k * GROUP + p] = dp[from + k];
            at[k * GROUP + p] = (int32_t)(start + corner[which[from + k]]);
        }
    }
}

/* sum += value[p] times the vectors at padded[at[p] + offset], for all p; `width` is a constant where it is called. */
static inline __attribute__((always_inline)) void add_windows(const float *padded, const float *value,
                                                              const int32_t *at, const int64_t *offset, float *sum,
                                                              int64_t count, const int width) {
    lanes total[BLOCK];
    for (int b = 0; b < width; b++) total[b] = *(const lanes *)(sum + b * LANES);
    for (int64_t p = 0; p < count; p++)
        for (int b = 0; b < width; b++) total[b] += value[p] * *(const lanes *)(padded + at[p] + offset[b]);
    for (int b = 0; b < width; b++) *(lanes *)(sum + b * LANES) = total[b];
}

static void group_weight_gradient(const Stage *s, const float *padded, const float *value, const int32_t *at,
                                  float *dw, int64_t count) {
    for (int64_t block = 0; block < s->blocks; block++) {
        int64_t offset[BLOCK];
        offsets(s, block, offset);
        for (int64_t k = 0; k < s->outputs; k++, value += GROUP, at += GROUP, dw += BLOCK * LANES)
            if (filled(s, block) <= BLOCK / 2)
                add_windows(padded, value, at, offset, dw, count, BLOCK / 2);
            else
                add_windows(padded, value, at, offset, dw, count, BLOCK);
        value -= s->outputs * GROUP, at -= s->outputs * GROUP;
    }
}

/* dw, [threads, blocks, outputs, BLOCK * LANES] and zeros before, from x and the pooled gradient dp.
 * `scratch` is [threads, size]: the input with its border, and two lists of GROUP * outputs. */
void pooled_weight_gradient(const float *x, const float *dp, const uint8_t *which, float *dw, float *scratch,
                            int64_t size, int64_t images, int64_t height, int64_t width, int64_t channels,
                            int64_t outputs, int64_t kernel, int threads) {
    Stage s = stage(height, width, channels, outputs, kernel);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        float *value = scratch + t * size, *padded = value + 2 * GROUP * outputs;
        int32_t *at = (int32_t *)(value + GROUP * outputs);
        for (int64_t m = images * t / threads; m < images * (t + 1) / threads; m++) {
            add_border(&s, x + m * height * width * channels, padded);
            for (int64_t first = 0; first < s.pooled; first += GROUP) {
                int64_t count = first + GROUP < s.pooled ? GROUP : s.pooled - first, image = m * s.pooled * outputs;
                list_by_output(&s, dp + image, which + image, first, count, value, at);
                group_weight_gradient(&s, padded, value, at, dw + t * s.blocks * outputs * BLOCK * LANES, count);
            }
        }
    }
}

/* ------------------------------------------------------------------ gradient of the input */

/* A pooled pixel's gradients and outputs in the order of `which`; corner q has those from start[q] to start[q + 1]. */
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

/* Add to the vectors of one window what some outputs send back to it. */
static void add_outputs(const float *weight, const float *value, const int32_t *output, const int64_t *offset,
                        float *at, int64_t count) {
    lanes total[BLOCK];
    for (int b = 0; b < BLOCK; b++) total[b] = *(const lanes *)(at + offset[b]);
    for (int64_t n = 0; n < count; n++) {
        const float *w = weight + (int64_t)output[n] * BLOCK * LANES;
        for (int b = 0; b < BLOCK; b++) total[b] += value[n] * *(const lanes *)(w + b * LANES);
    }
    for (int b = 0; b < BLOCK; b++) *(lanes *)(at + offset[b]) = total[b];
}

static void group_input_gradient(const Stage *s, const float *weight, const float *value, const int32_t *output,
                                 int32_t (*start)[5], float *padded, int64_t first, int64_t count) {
    int64_t corner[4] = {0, s->channels, s->row, s->row + s->channels};
    for (int64_t block = 0; block < s->blocks; block++, weight += s->outputs * BLOCK * LANES) {
        int64_t offset[BLOCK];
        offsets(s, block, offset);
        for (int64_t p = 0; p < count; p++)
            for (int q = 0; q < 4; q++) {
                int64_t from = p * s->outputs + start[p][q], many = start[p][q + 1] - start[p][q];
                float *at = padded + window(s, first + p) + corner[q];
                if (many) add_outputs(weight, value + from, output + from, offset, at, many);
            }
    }
}

static void remove_border(const Stage *s, const float *padded, float *x, int64_t channels) {
    int64_t reach = s->kernel / 2;
    for (int64_t i = 0; i < s->height; i++)
        for (int64_t j = 0; j < s->width; j++, x += channels)
            memcpy(x, padded + (i + reach) * s->row + (j + reach) * s->channels, channels * sizeof(float));
}

/* dx from the pooled gradient dp. `weight` is [blocks, outputs, BLOCK * LANES] for pixels whose channels are filled up
 * to whole vectors. `scratch` is [threads, size]: dx with its border, and two lists of GROUP * outputs. */
void pooled_input_gradient(const float *weight, const float *dp, const uint8_t *which, float *dx, float *scratch,
                           int64_t size, int64_t images, int64_t height, int64_t width, int64_t channels,
                           int64_t outputs, int64_t kernel, int threads) {
    Stage s = stage(height, width, (channels + LANES - 1) / LANES * LANES, outputs, kernel);
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

/* Samples of a normal distribution squashed by tanh, with their log-densities. kernels/squashed.py calls it.
 *
 * Means and unclamped ln sigma (raw) are [rows, width], with rows `ld` apart; all other arrays are contiguous. */

#include "kernels.h"

/* ln(1 + z) for 0 <= z <= 1, by the series of 2 artanh(z / (2 + z)), whose first omitted term is below 1e-8. */
static inline float log1p_small(float z) {
    float s = z / (2.0f + z), q = s * s, p = 1.0f / 13;
    p = fmaf(p, q, 1.0f / 11);
    p = fmaf(p, q, 1.0f / 9);
    p = fmaf(p, q, 1.0f / 7);
    p = fmaf(p, q, 1.0f / 5);
    p = fmaf(p, q, 1.0f / 3);
    p = fmaf(p, q, 1.0f);
    return 2.0f * s * p;
}

static inline float clipped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

enum { AT_ONCE = 256 }; /* numbers processed together, from several rows: single rows are too short for vectors */

/* For `count` numbers, replace mean by the action, and raw by the number's term of the log-density. */
static void sample_numbers(float *mean, float *raw, const float *noise, int64_t count, float low, float high) {
    const float half_log_two_pi = 0.918938533f, log_two = 0.693147181f;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float n = noise[i], log_std = clipped(raw[i], low, high);
        float u = fmaf(fast_exp(log_std), n, mean[i]), size = u < 0.0f ? -u : u;
        mean[i] = fast_tanh(u);
        /* ln(1 - tanh(u)^2) is even: 2 (ln 2 - |u| - ln(1 + exp(-2 |u|))) */
        float squashing = 2.0f * (log_two - size - log1p_small(fast_exp(-2.0f * size)));
        raw[i] = -0.5f * n * n - log_std - half_log_two_pi - squashing;
    }
}

/* a = tanh(mean + sigma noise), and ln pi(a) of each row. */
void squashed_sample(const float *mean, const float *raw, int64_t ld, const float *noise, float *action, float *density,
                     int64_t rows, int64_t width, float low, float high) {
    float a[AT_ONCE], b[AT_ONCE];
    for (int64_t r = 0; r < rows; r++) density[r] = 0.0f;
    for (int64_t first = 0, count; first < rows * width; first += count) {
        count = rows * width - first < AT_ONCE ? rows * width - first : AT_ONCE;
        for (int64_t i = 0, r = first / width, j = first % width; i < count; i++) {
            a[i] = mean[r * ld + j], b[i] = raw[r * ld + j];
            if (++j == width) j = 0, r++;
        }
        sample_numbers(a, b, noise + first, count, low, high);
        for (int64_t i = 0, r = first / width, j = first % width; i < count; i++) {
            action[first + i] = a[i], density[r] += b[i];
            if (++j == width) j = 0, r++;
        }
    }
}

/* The backward pass. With g = daction (1 - a^2) + 2 a ddensity, dmean = g, and draw = g sigma noise - ddensity where ln
 * sigma is within its limits, else 0. Rows of dmean and draw lie `to` apart. */
void squashed_sample_backward(const float *raw, int64_t ld, const float *noise, const float *action,
                              const float *daction, const float *ddensity, float *dmean, float *draw, int64_t to,
                              int64_t rows, int64_t width, float low, float high) {
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t j = 0; j < width; j++) {
            int64_t i = r * width + j;
            float a = action[i], x = raw[r * ld + j], g = daction[i] * (1.0f - a * a) + 2.0f * a * ddensity[r];
            float dlog_std = g * fast_exp(clipped(x, low, high)) * noise[i] - ddensity[r];
            dmean[r * to + j] = g;
            draw[r * to + j] = x < low || x > high ? 0.0f : dlog_std;
        }
    }
}

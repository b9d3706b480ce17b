/* Losses and expectations among classes, each in one go over rows of a few numbers.
 *
 * kernels/losses.py says what is computed and calls this. Arrays are contiguous and float32, flags bytes.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

static float highest(const float *x, int64_t n) {
    float top = x[0];
    for (int64_t a = 1; a < n; a++) top = x[a] > top ? x[a] : top;
    return top;
}

/* Probabilities p [n] of logits x [n]; returns ln sum exp x. NaN stays NaN. */
static float softmax(const float *x, float *p, int64_t n) {
    float top = highest(x, n), sum = 0;
    for (int64_t a = 0; a < n; a++) sum += p[a] = expf(x[a] - top);
    for (int64_t a = 0; a < n; a++) p[a] /= sum;
    return top + logf(sum);
}

/* The mean over rows that are not the last of weight [windows, steps] (1 if there is none) times what the choices of a
 * row add up to, ln sum exp x - x . action, and of `square` times the mean of x^2. logits [windows, steps, width],
 * action [windows, steps + 1, width], last [windows, steps + 1], the classes of each choice in `sizes`; to the gradient
 * and the mean. */
void choice_loss(const float *logits, const float *action, const uint8_t *last, const float *weight, float *gradient,
                 float *out, int64_t windows, int64_t steps, int64_t width, const int64_t *sizes, int64_t choices,
                 float square) {
    int64_t all = 0;
    double total = 0;
    for (int64_t w = 0; w < windows; w++)
        for (int64_t t = 0; t < steps; t++) all += !last[w * (steps + 1) + t];
    const float each = 1.0f / (float)(all > 1 ? all : 1);
    memset(gradient, 0, (size_t)(windows * steps * width) * sizeof(float));
    for (int64_t w = 0; w < windows; w++)
        for (int64_t t = 0; t < steps; t++) {
            const int64_t at = w * (steps + 1) + t, row = w * steps + t;
            if (last[at]) continue;
            const float *x = logits + row * width, *taken = action + at * width;
            float *grad = gradient + row * width, loss = 0, squares = 0;
            const float share = weight ? weight[row] : 1.0f;
            for (int64_t c = 0, first = 0; c < choices; first += sizes[c++])
                loss += softmax(x + first, grad + first, sizes[c]);
            for (int64_t a = 0; a < width; a++) {
                loss -= x[a] * taken[a];
                squares += x[a] * x[a];
                grad[a] = each * (share * (grad[a] - taken[a]) + 2.0f * square * x[a] / (float)width);
            }
            total += (double)(share * loss + square * squares / (float)width);
        }
    *out = (float)(total * (double)each);
}

/* Of each row what `worth` says of the class with the highest value among those whose logit is at least the highest one
 * plus `least`: values, logits and worth [rows, classes] to [rows]. */
void likely_worth(const float *values, const float *logits, const float *worth, float *out, int64_t rows,
                  int64_t classes, float least) {
    for (int64_t r = 0; r < rows; r++) {
        const float *q = values + r * classes, *x = logits + r * classes;
        const float from = highest(x, classes) + least;
        int64_t best = -1;
        for (int64_t a = 0; a < classes; a++)
            if (!(x[a] < from) && (best < 0 || q[a] > q[best] || isnan(q[a]))) best = a;
        out[r] = worth[r * classes + (best < 0 ? 0 : best)];
    }
}

/* The expectation of the least of several values under probabilities of classes, and what an action is better: logits
 * [rows, classes], values [copies, rows, classes] to `expected` [rows]. With an action [rows, classes], `better` [rows]
 * is the least of its values less that expectation. `room` is [classes]. */
void expected_least(const float *logits, const float *values, const float *action, float *expected, float *better,
                    float *room, int64_t copies, int64_t rows, int64_t classes) {
    for (int64_t r = 0; r < rows; r++) {
        float mean = 0, taken = INFINITY;
        softmax(logits + r * classes, room, classes);
        for (int64_t a = 0; a < classes; a++) {
            float q = values[r * classes + a];
            for (int64_t k = 1; k < copies; k++) {
                float other = values[(k * rows + r) * classes + a];
                q = other < q || isnan(other) ? other : q;
            }
            mean += room[a] * q;
        }
        expected[r] = mean;
        if (!action) continue;
        for (int64_t k = 0; k < copies; k++) {
            float q = 0;
            for (int64_t a = 0; a < classes; a++) q += values[(k * rows + r) * classes + a] * action[r * classes + a];
            taken = q < taken || isnan(q) ? q : taken;
        }
        better[r] = taken - mean;
    }
}

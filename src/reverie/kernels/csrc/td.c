/* Targets and errors of temporal differences. kernels/losses.py calls it.
 *
 * All arrays are contiguous: rows [windows, rows] with flags of a byte each, what is made of them [windows, rows - 1].
 */

#include "kernels.h"

/* returns.td0: reward[t + 1] + discount (1 - terminal[t + 1]) value[t + 1], or value[t] where t is the last. */
void td0(const float *reward, const uint8_t *terminal, const uint8_t *last, const float *value, float *target,
         int64_t windows, int64_t rows, float discount) {
    for (int64_t b = 0; b < windows; b++)
        for (int64_t t = 0; t + 1 < rows; t++) {
            int64_t at = b * rows + t, next = at + 1;
            float live = terminal[next] ? 0.0f : discount;
            target[b * (rows - 1) + t] = last[at] ? value[at] : reward[next] + live * value[next];
        }
}

/* The mean of x where the mask is 1, and the share of each number in it. */
void masked_mean(const float *x, const uint8_t *mask, float *share, float *mean, int64_t count) {
    int64_t held = 0;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) held += mask[i];
    float each = 1.0f / (float)(held > 1 ? held : 1);
    for (int64_t i = 0; i < count; i++) {
        share[i] = mask[i] ? each : 0.0f;
        sum += mask[i] ? (double)x[i] : 0.0;
    }
    *mean = (float)(sum * each);
}

/* The loss of an error, and its derivative: the square, or Huber's loss if kappa is not negative. */
static inline double loss_of(float error, float kappa, float *slope) {
    double size = error < 0 ? -(double)error : (double)error;
    if (kappa < 0) {
        *slope = 2.0f * error;
        return size * size;
    }
    *slope = error < -kappa ? -kappa : error > kappa ? kappa : error; /* NaN stays NaN */
    return size <= (double)kappa ? 0.5 * size * size : (double)kappa * (size - 0.5 * (double)kappa);
}

/* td.squared_error and td.huber_error of critics [critics, windows, rows - 1]: the gradient of the loss, of the same shape,
 * the priority of each window, and in `out` the loss, the mean and the largest prediction, and the mean and the
 * largest target. */
void td_error(const float *prediction, const float *target, const uint8_t *last, const float *weight, float *gradient,
              float *priority, float *out, int64_t critics, int64_t windows, int64_t rows, float scale,
              float kappa) {
    int64_t steps = rows - 1, all = 0, count = windows * steps;
    for (int64_t b = 0; b < windows; b++)
        for (int64_t t = 0; t < steps; t++) all += !last[b * rows + t];
    float most[2] = {-INFINITY, -INFINITY}; /* of predictions and targets */
    double loss = 0, predicted = 0, targets = 0, each = (double)scale / (double)(all > 1 ? all : 1);
    for (int64_t b = 0; b < windows; b++) {
        double wrong = 0;
        int64_t held = 0;
        float share = weight[b] * (float)each;
        for (int64_t t = 0; t < steps; t++) {
            int64_t at = b * steps + t;
            int here = !last[b * rows + t];
            double values = 0;
            held += here;
            targets += here ? (double)target[at] : 0.0;
            for (int64_t k = 0; k < critics; k++) {
                float q = prediction[k * count + at], error = here ? q - target[at] : 0.0f;
                float slope;
                loss += (double)share * loss_of(error, kappa, &slope);
                gradient[k * count + at] = share * slope;
                wrong += error < 0 ? -(double)error : (double)error;
                values += here ? (double)q : 0.0;
            }
            predicted += values;
            if (here) {
                most[0] = larger(most[0], (float)(values / (double)critics));
                most[1] = larger(most[1], target[at]);
            }
        }
        priority[b] = (float)(wrong / (double)((held > 1 ? held : 1) * critics));
    }
    out[0] = (float)loss;
    out[1] = (float)(predicted / (double)((all > 1 ? all : 1) * critics));
    out[2] = all ? most[0] : 0.0f;
    out[3] = (float)(targets / (double)(all > 1 ? all : 1));
    out[4] = all ? most[1] : 0.0f;
}

/* Running statistics of the rows of a run: nn/normalization.py and nn/reward_scaling.py. Called by kernels/rows.py. */

#include <math.h>
#include <stdint.h>

/* A run may resume on a machine without a compiler, so products are rounded before they are added, as in NumPy. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("-ffp-contract=off")
#else
#pragma STDC FP_CONTRACT OFF
#endif

/* Merge `count` numbers of this mean and sum of squared deviations into those of one column of moments [3, width]: Chan,
 * Golub and LeVeque (1979). */
static inline void merge(double *moments, int64_t width, int64_t count, double fresh, double scatter) {
    double *mean = moments + width, *spread = moments + 2 * width, before = *moments;
    double shift = fresh - *mean, share = (double)count / ((double)count + before);
    *spread += shift * shift * before * share;
    *spread += scatter;
    *mean += shift * share;
    *moments = before + (double)count;
}

static inline double deviation(const double *moments, int64_t width) {
    return sqrt(moments[2 * width] / (moments[0] < 1 ? 1 : moments[0]));
}

/* Add rows [count, width] to moments [3, width]; set shift and factor [width] to mean 0 and standard deviation 1. Standard
 * deviations of at most `noise` times the mean, or `least`, count as 0. */
void add_rows(double *moments, const float *rows, int64_t count, int64_t width, double noise, double least, float *shift,
               float *factor) {
    for (int64_t d = 0; d < width; d++) {
        double sum = 0, scatter = 0;
        for (int64_t i = 0; i < count; i++) sum += rows[i * width + d];
        double fresh = sum / (double)count;
        if (count > 1)
            for (int64_t i = 0; i < count; i++) {
                double from = rows[i * width + d] - fresh;
                scatter += from * from;
            }
        if (count > 0) merge(moments + d, width, count, fresh, scatter);
        double mean = moments[width + d], std = deviation(moments + d, width), limit = noise * fabs(mean);
        shift[d] = (float)mean;
        factor[d] = (float)(std <= (limit > least ? limit : least) ? 1 : 1 / std);
    }
}

/* Update returns [count] with the next rows: G <- r + gamma G, 0 at a first row. Add all returns but these zeros to moments
 * [3, 1]; set factor to 1 / their standard deviation. */
void add_returns(double *returns, const float *reward, const uint8_t *first, int64_t count, double discount,
                  double *moments, double least, float *factor) {
    double sum = 0, scatter = 0;
    int64_t taken = 0;
    for (int64_t i = 0; i < count; i++) {
        returns[i] = first[i] ? 0 : discount * returns[i] + reward[i];
        if (first[i]) continue;
        sum += returns[i];
        taken++;
    }
    double fresh = sum / (double)taken;
    if (taken > 1)
        for (int64_t i = 0; i < count; i++)
            if (!first[i]) scatter += (returns[i] - fresh) * (returns[i] - fresh);
    if (taken > 0) merge(moments, 1, taken, fresh, scatter);
    double std = deviation(moments, 1);
    *factor = (float)(std > least ? 1 / std : 1);
}

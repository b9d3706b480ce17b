/* A sum tree whose nodes have 32 children each. Described in replay/prioritized.py (SumTree); called by kernels/rows.py.
 *
 * levels[0] are the weights, levels[d + 1][i] is the sum of levels[d][32 i .. 32 i + 31]. Numbers are added in NumPy's
 * order, so that draws do not depend on whether there is a compiler.
 */

#include <stdint.h>

enum { FAN = 32, LANES = 8 };

/* numpy.sum of 32 numbers: eight sums of every eighth number, which are then added in pairs. */
static inline double sum_of(const double *x) {
    double part[8];
    for (int j = 0; j < 8; j++) part[j] = x[j];
    for (int i = 8; i < FAN; i += 8)
        for (int j = 0; j < 8; j++) part[j] += x[i + j];
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

/* Set the weights of some leaves (of duplicates the last counts) and update all sums that contain them. */
void tree_set(double *const *levels, int64_t depth, const int64_t *slots, const double *weights, int64_t count) {
    for (int64_t k = 0; k < count; k++) levels[0][slots[k]] = weights[k];
    int64_t span = 1;
    for (int64_t d = 1; d < depth; d++) {
        int64_t before = -1;
        span *= FAN;
        for (int64_t k = 0; k < count; k++) {
            int64_t node = slots[k] / span;
            if (node != before) levels[d][node] = sum_of(levels[d - 1] + node * FAN);
            before = node;
        }
    }
}

/* Find the leaves at which the running sum of all weights exceeds the targets.
 *
 * Several targets descend together: each running sum depends on the previous one, and in the meantime the processor
 * works on the other targets. */
void tree_draw(double *const *levels, int64_t depth, const double *targets, int64_t count, int64_t *slots) {
    for (int64_t k = 0; k < count; k += LANES) {
        double target[LANES];
        int64_t node[LANES] = {0}, lanes = count - k < LANES ? count - k : LANES;
        for (int l = 0; l < LANES; l++) target[l] = targets[l < lanes ? k + l : k];
        for (int64_t d = depth - 1; d >= 0; d--) {
            double sums[FAN][LANES];
            for (int l = 0; l < LANES; l++) sums[0][l] = levels[d][node[l] * FAN];
            for (int j = 1; j < FAN; j++)
                for (int l = 0; l < LANES; l++) sums[j][l] = sums[j - 1][l] + levels[d][node[l] * FAN + j];
            int64_t child[LANES] = {0};
            for (int l = 0; l < LANES; l++) {
                union { double value; int64_t bits; } below = {sums[FAN - 1][l]};
                below.bits -= below.value > 0; /* the next float toward 0: the target must be below the sum */
                target[l] = target[l] < below.value ? target[l] : below.value;
            }
            for (int j = 0; j < FAN; j++)
                for (int l = 0; l < LANES; l++) child[l] += sums[j][l] <= target[l];
            for (int l = 0; l < LANES; l++) {
                child[l] = child[l] < FAN ? child[l] : FAN - 1; /* only exceeded if all weights are 0 */
                target[l] -= child[l] > 0 ? sums[child[l] - 1][l] : 0;
                node[l] = node[l] * FAN + child[l];
            }
        }
        for (int l = 0; l < lanes; l++) slots[k + l] = node[l];
    }
}

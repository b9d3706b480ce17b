/* Random integers below a bound, equal to those of NumPy's Generator.integers. Called by kernels/rows.py. */

#include <stdint.h>

/* Write `count` integers in 0 .. bound - 1, made from the 32 random bits that each call of `next(state)` returns; bound is
 * at least 2. If there is a table, write its entries at these indices instead.
 *
 * Lemire 2019, Fast random integer generation in an interval, arXiv 1805.10941, algorithm 5: the number is the upper half
 * of bits x bound; it is rejected if the lower half is below 2^32 mod bound, as some numbers would
 * otherwise be more probable. */
void draw_integers(void *state, uint32_t (*next)(void *), uint32_t bound, int64_t count, const int64_t *table,
                   int64_t *numbers) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t product = (uint64_t)next(state) * bound;
        if ((uint32_t)product < bound) {
            uint32_t least = -bound % bound; /* 2^32 mod bound */
            while ((uint32_t)product < least) product = (uint64_t)next(state) * bound;
        }
        int64_t number = (int64_t)(product >> 32);
        numbers[i] = table ? table[number] : number;
    }
}

/* Whole numbers below a bound, as NumPy's Generator.integers draws them. data/chance.py calls this. */

#include <stdint.h>

/* `count` numbers of 0 .. bound - 1 from what `next(state)` gives, 32 random bits at a time; bound is 2 or more. If there
 * is a table, its entries at these places instead.
 *
 * Lemire 2019, Fast random integer generation in an interval, arXiv 1805.10941, algorithm 5: the upper half of bits x
 * bound is the number; a lower half below 2^32 mod bound is refused, or some numbers would come more often. */
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

/* Repeats calls of compiled functions that a tape has recorded (kernels/tape.py), without returning to Python in between.
 *
 * All of them take integers and pointers, some also floats, in any order. The calling conventions of the systems below
 * pass these two kinds separately: the first arguments in registers of their kind, further integers in stack slots of
 * eight bytes. A function ignores arguments that it does not take. So one function type serves for all calls. */

#include <stdint.h>

enum { WHOLE = 16, REAL = 8 };

typedef struct {
    void *function;
    int64_t whole[WHOLE];
    double real[REAL]; /* a double, or a float in the first four bytes */
} Recorded;

#if (defined(__x86_64__) || defined(__aarch64__)) && defined(__linux__)

typedef void Any(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                 int64_t, int64_t, int64_t, int64_t, double, double, double, double, double, double, double, double);

int replay_known(void) { return 1; }

void replay_calls(const Recorded *calls, int64_t count) {
    for (const Recorded *c = calls; c < calls + count; c++) {
        const int64_t *w = c->whole;
        const double *r = c->real;
        ((Any *)c->function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14],
                             w[15], r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]);
    }
}

#else

int replay_known(void) { return 0; }

void replay_calls(const Recorded *calls, int64_t count) { (void)calls, (void)count; }

#endif

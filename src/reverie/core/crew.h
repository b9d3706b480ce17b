/* Threads that work together and wait for each other awake for a moment only, then asleep.
 *
 * Those of OpenMP wait awake for milliseconds, in which they keep the very thread that they wait for from its core wherever
 * another process is busy: two threads beside one were thirty times slower than one thread.
 */

#ifndef REVERIE_CREW_H
#define REVERIE_CREW_H

#include <stdint.h>

/* One of `threads` workers; `at` is for meet(). */
typedef struct {
    int64_t number, threads;
} Worker;

typedef void Work(void *task, Worker worker);

/* Run `work` by so many threads at most and return when all are done; by one if the others are busy for somebody else. */
void together(Work *work, void *task, int64_t threads);

/* Wait until all workers of the task have come here. */
void meet(Worker worker);

/* What comes next of work that threads take piece by piece: one whose core is busy with something else takes less. */
static inline int64_t next_piece(int64_t *taken) { return __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED); }

#endif

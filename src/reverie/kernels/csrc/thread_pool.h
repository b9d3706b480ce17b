/* A pool of threads that wait for each other by spinning for a moment, then sleeping.
 *
 * OpenMP's threads spin for milliseconds. If another process is busy, they keep the very thread that they wait for
 * from running: next to a busy process, two threads were thirty times slower than one.
 */

#ifndef REVERIE_CREW_H
#define REVERIE_CREW_H

#include <stdint.h>

/* One of `threads` workers, numbered from 0. */
typedef struct {
    int64_t number, threads;
} Worker;

typedef void Work(void *task, Worker worker);

/* Run `work` with at most `threads` threads and return when all are done; with one if the pool is in use. */
void together(Work *work, void *task, int64_t threads);

/* Wait until all workers of the task have called this (a barrier). */
void meet(Worker worker);

/* Return the index of the next piece of work. Threads take pieces one by one, so one on a busy core takes fewer. */
static inline int64_t next_piece(int64_t *taken) { return __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED); }

#endif

/* See thread_pool.h. */

#include "thread_pool.h"

#ifdef _WIN32

void together(Work *work, void *task, int64_t threads) {
    (void)threads;
    Worker only = {0, 1};
    work(task, only);
}

void meet(Worker worker) { (void)worker; }

#else

#include <pthread.h>
#include <sched.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#define REST __builtin_ia32_pause()
#else
#define REST __asm__ volatile("" ::: "memory")
#endif

/* How a thread rounds, and whether denormal numbers count as 0: workers do as their caller. */
#if defined(__SSE__)
static inline int64_t float_mode(void) { return __builtin_ia32_stmxcsr(); }
static inline void set_float_mode(int64_t mode) { __builtin_ia32_ldmxcsr((unsigned)mode); }
#elif defined(__aarch64__)
static inline int64_t float_mode(void) {
    int64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void set_float_mode(int64_t mode) { __asm__ volatile("msr fpcr, %0" ::"r"(mode)); }
#else
static inline int64_t float_mode(void) { return 0; }
static inline void set_float_mode(int64_t mode) { (void)mode; }
#endif

enum { MOST = 64, AWAKE = 150000, YIELDS = 50, NAP = 50000 }; /* AWAKE and NAP are in ns */

static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int64_t hired = 0, asleep = 0, done, arrived, meetings;
static int64_t call; /* number of the call times MOST, plus its number of threads */
static int64_t hired_at[MOST]; /* the last call before each thread was started */
static Work *work_now;
static void *task_now;
static int64_t mode_now;

static inline int64_t seen(int64_t *x) { return __atomic_load_n(x, __ATOMIC_ACQUIRE); }

static inline int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Return whether *x changes from `old` within AWAKE ns, spinning. */
static int changes(int64_t *x, int64_t old) {
    int64_t end = now() + AWAKE;
    do
        for (int i = 0; i < 16; i++) {
            if (seen(x) != old) return 1;
            REST;
        }
    while (now() < end);
    return 0;
}

/* Wait until *x is no longer `old`: spin, then yield the core, then sleep for short times. */
static void until_changed(int64_t *x, int64_t old) {
    const struct timespec nap = {0, NAP};
    if (changes(x, old)) return;
    for (int64_t i = 0; seen(x) == old; i++)
        if (i < YIELDS)
            sched_yield();
        else
            nanosleep(&nap, 0);
}

void meet(Worker worker) {
    if (worker.threads == 1) return;
    int64_t meeting = seen(&meetings);
    if (__atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL) == worker.threads) {
        __atomic_store_n(&arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&meetings, meeting + 1, __ATOMIC_RELEASE);
    } else {
        until_changed(&meetings, meeting);
    }
}

static void *worker(void *number) {
    int64_t mine = (int64_t)(intptr_t)number, known = hired_at[mine];
    for (;;) {
        if (!changes(&call, known)) {
            pthread_mutex_lock(&lock);
            asleep++;
            while (seen(&call) == known) pthread_cond_wait(&wake, &lock);
            asleep--;
            pthread_mutex_unlock(&lock);
        }
        known = seen(&call);
        Worker me = {mine, known % MOST};
        if (mine >= me.threads) continue;
        set_float_mode(mode_now);
        work_now(task_now, me);
        __atomic_add_fetch(&done, 1, __ATOMIC_ACQ_REL);
    }
    return 0;
}

static void forget(void) { /* after a fork the new process has none of these threads */
    hired = asleep = arrived = 0;
    pthread_mutex_init(&taken, 0);
    pthread_mutex_init(&lock, 0);
    pthread_cond_init(&wake, 0);
}

static void hire(int64_t threads) {
    static int prepared = 0;
    if (!prepared) prepared = pthread_atfork(0, 0, forget) == 0;
    for (pthread_t thread; hired + 1 < threads && prepared; hired++) {
        hired_at[hired + 1] = call;
        if (pthread_create(&thread, 0, worker, (void *)(intptr_t)(hired + 1))) return;
        pthread_detach(thread);
    }
}

void together(Work *work, void *task, int64_t threads) {
    Worker me = {0, threads < MOST ? threads : MOST - 1};
    if (me.threads > 1 && pthread_mutex_trylock(&taken)) me.threads = 1;
    if (me.threads > 1) {
        hire(me.threads);
        if (hired + 1 < me.threads) me.threads = hired + 1;
        if (me.threads < 2) pthread_mutex_unlock(&taken);
    }
    if (me.threads < 2) {
        work(task, (Worker){0, 1});
        return;
    }
    work_now = work, task_now = task, mode_now = float_mode(), done = 0;
    pthread_mutex_lock(&lock);
    __atomic_store_n(&call, (call / MOST + 1) * MOST + me.threads, __ATOMIC_RELEASE);
    if (asleep) pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
    work(task, me);
    for (int64_t others; (others = seen(&done)) < me.threads - 1;) until_changed(&done, others);
    pthread_mutex_unlock(&taken);
}

#endif

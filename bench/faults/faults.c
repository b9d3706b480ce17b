/* Lets a process die, or its disk be full, at a chosen one of its system calls that write below a folder.
 *
 *   cc -shared -fPIC -O1 faults.c -o faults.so -ldl
 *   LD_PRELOAD=./faults.so FAULT_BELOW=/runs/x FAULT_AT=17 reverie train ...
 *
 * FAULT_AT=k kills the process (SIGKILL) just before the k-th such call; with FAULT_HALF=1 a write is cut to half of its
 * bytes first, as a crash in the middle of it would. FAULT_FULL=file makes every call that needs space fail with ENOSPC
 * as long as `file` exists. FAULT_COUNT=file: the number of calls, and of those refused for
 * want of space, is written there when the process ends by itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *below, *full;
static long at = -1;
static int half;
static atomic_long calls, refused;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* Read the settings; called again by a process that was forked and has others. */
__attribute__((constructor)) void faults_begin(void) {
    calls = 0;
    below = getenv("FAULT_BELOW");
    full = getenv("FAULT_FULL");
    if (getenv("FAULT_AT")) at = atol(getenv("FAULT_AT"));
    half = getenv("FAULT_HALF") != NULL;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("FAULT_COUNT");
    FILE *file = path && below ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld %ld\n", (long)calls, (long)refused);
        fclose(file);
    }
}

static int inside(const char *path) {
    char whole[PATH_MAX];
    if (!below || !path) return 0;
    if (path[0] != '/') { /* relative to here */
        if (!getcwd(whole, sizeof whole) || strlen(whole) + strlen(path) + 2 > sizeof whole) return 0;
        strcat(strcat(whole, "/"), path);
        path = whole;
    }
    return strncmp(path, below, strlen(below)) == 0;
}

static int inside_at(int folder, const char *path) {
    char link[64], whole[PATH_MAX];
    if (!path || path[0] == '/' || folder == AT_FDCWD) return inside(path);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, whole, sizeof whole - strlen(path) - 2);
    if (size < 0) return 0;
    whole[size] = 0;
    return inside(strcat(strcat(whole, "/"), path));
}

static int open_inside(int file) {
    char link[64], path[PATH_MAX];
    if (!below || file <= 2) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return inside(path);
}

/* Whether the call that comes now is the last; the caller may do half of it first. */
static int due(void) { return ++calls == at; }

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int no_space(void) {
    if (!full || access(full, F_OK)) return 0;
    refused++;
    errno = ENOSPC;
    return 1;
}

ssize_t write(int file, const void *bytes, size_t count) {
    REAL(write);
    if (open_inside(file)) {
        if (due()) {
            if (half) real(file, bytes, count / 2);
            die();
        }
        if (no_space()) return -1;
    }
    return real(file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    if (open_inside(file)) {
        if (due()) die();
        if (no_space()) return -1;
    }
    return real(file, parts, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    REAL(pwrite64);
    if (open_inside(file)) {
        if (due()) {
            if (half) real(file, bytes, count / 2, offset);
            die();
        }
        if (no_space()) return -1;
    }
    return real(file, bytes, count, offset);
}

int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64);
    if (open_inside(file)) {
        if (due()) die();
        if (no_space()) return -1;
    }
    return real(file, size);
}

int fsync(int file) {
    REAL(fsync);
    if (open_inside(file) && due()) die();
    return real(file);
}

#define OPENING(name, is_inside, call) \
    REAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    } \
    if ((flags & (O_CREAT | O_TRUNC)) && is_inside) { \
        if (due()) die(); \
        if ((flags & O_CREAT) && no_space()) return -1; \
    } \
    return call

int open(const char *path, int flags, ...) { OPENING(open, inside(path), real(path, flags, mode)); }
int open64(const char *path, int flags, ...) { OPENING(open64, inside(path), real(path, flags, mode)); }
int openat(int folder, const char *path, int flags, ...) {
    OPENING(openat, inside_at(folder, path), real(folder, path, flags, mode));
}
int openat64(int folder, const char *path, int flags, ...) {
    OPENING(openat64, inside_at(folder, path), real(folder, path, flags, mode));
}

int rename(const char *from, const char *to) {
    REAL(rename);
    if (inside(to) && due()) die();
    return real(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat);
    if (inside_at(b, to) && due()) die();
    return real(a, from, b, to);
}

int unlink(const char *path) {
    REAL(unlink);
    if (inside(path) && due()) die();
    return real(path);
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    if (inside_at(folder, path) && due()) die();
    return real(folder, path, flags);
}

int rmdir(const char *path) {
    REAL(rmdir);
    if (inside(path) && due()) die();
    return real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (inside(path)) {
        if (due()) die();
        if (no_space()) return -1;
    }
    return real(path, mode);
}

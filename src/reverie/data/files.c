/* Many files written, and put in their places, in one call. data/files.py calls it: in Python each system call gives
 * up the lock of the interpreter and has to get it back, which takes a thread beside a busy one a millisecond a time.
 *
 * `failed`: the error number, 0 if all went well, and of which file or folder.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static int whole(int file, const char *bytes, int64_t size) {
    while (size > 0) {
        ssize_t done = write(file, bytes, (size_t)(size < 1 << 30 ? size : 1 << 30));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno;
        if (done == 0) return EIO; /* else this would go on for ever */
        bytes += done;
        size -= done;
    }
    return 0;
}

/* `close` tells of writes that failed later, over a network for one. */
static int closed(int file, int error) {
    return close(file) < 0 && !error && errno != EINTR ? errno : error;
}

static int synchronised(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC), error;
    if (file < 0) return errno;
    while ((error = fsync(file) < 0 ? errno : 0) == EINTR) {}
    return closed(file, error);
}

/* Files number 0 to count - 1; number i holds the parts from `begins[i]` to before `begins[i + 1]`, one after the
 * other. The first that fails is the last that is written. */
void write_files(const char *const *paths, const int64_t *begins, const void *const *parts, const int64_t *sizes,
                 int64_t count, int64_t *failed) {
    for (int64_t i = 0; i < count; i++) {
        int error = 0, file = open(paths[i], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (file < 0) error = errno;
        for (int64_t part = begins[i]; part < begins[i + 1] && !error; part++)
            error = whole(file, parts[part], sizes[part]);
        if (file >= 0) error = closed(file, error);
        failed[0] = error;
        failed[1] = i;
        if (error) return;
    }
}

/* Those files synchronised, then renamed, then the folders synchronised. A folder's number comes after the files'. */
void place_files(const char *const *beside, const char *const *paths, int64_t count, const char *const *folders,
                 int64_t folder_count, int64_t *failed) {
    for (int64_t i = 0; i < count; i++) {
        failed[1] = i;
        if ((failed[0] = synchronised(beside[i]))) return;
    }
    for (int64_t i = 0; i < count; i++) {
        failed[1] = i;
        if ((failed[0] = rename(beside[i], paths[i]) < 0 ? errno : 0)) return;
    }
    for (int64_t i = 0; i < folder_count; i++) {
        failed[1] = count + i;
        if ((failed[0] = synchronised(folders[i]))) return;
    }
}

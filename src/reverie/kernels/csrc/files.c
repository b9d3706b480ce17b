/* Writing and renaming many files in one call. Called by store/files.py: in Python each system call releases the
 * interpreter's lock and acquires it again, which takes a millisecond each time if another thread is busy.
 *
 * `failed`: the error number (0 for success) and the index of the file or folder.
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
        if (done == 0) return EIO; /* or this would never end */
        bytes += done;
        size -= done;
    }
    return 0;
}

/* `close` reports writes that failed later, as on network file systems. */
static int closed(int file, int error) {
    return close(file) < 0 && !error && errno != EINTR ? errno : error;
}

static int synchronised(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC), error;
    if (file < 0) return errno;
    while ((error = fsync(file) < 0 ? errno : 0) == EINTR) {}
    return closed(file, error);
}

/* Write `count` files; file i consists of the parts begins[i] .. begins[i + 1] - 1. Stop at the first failure. */
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

/* Synchronise all files, rename them, then synchronise the folders, whose indices follow those of the files. */
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

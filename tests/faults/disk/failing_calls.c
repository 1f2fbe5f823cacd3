/* Preloaded into a command: the N-th call of one kind on a file below a folder fails, or all wait; renames are logged.

   FAULT_UNDER  folder whose files are concerned
   FAULT_CALL   "read", "write" or "fsync"
   FAULT_ERRNO  the error of the failing calls; 0 lets each wait 20 ms instead
   FAULT_FROM   number of the first call that fails; FAULT_COUNT that of calls that fail from there on
   FAULT_LOG    file that gets a line for each fsync and rename */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int concerned(const char *path) {
    const char *under = getenv("FAULT_UNDER");
    return under && strncmp(path, under, strlen(under)) == 0;
}

static int fails(const char *call, int file) {
    char path[PATH_MAX];
    const char *chosen = getenv("FAULT_CALL");
    int saved = errno;
    if (!chosen || strcmp(chosen, call) != 0 || !path_of(file, path) || !concerned(path)) {
        errno = saved;
        return 0;
    }
    long nth = atomic_fetch_add(&calls, 1), error = number("FAULT_ERRNO", EIO), from = number("FAULT_FROM", 0);
    errno = saved;
    if (error == 0) {
        usleep(20000);
        return 0;
    }
    if (nth < from || nth >= from + number("FAULT_COUNT", LONG_MAX / 2)) return 0;
    errno = (int)error;
    return 1;
}

static void log_line(const char *what, const char *first, const char *second) {
    const char *log = getenv("FAULT_LOG");
    char line[2 * PATH_MAX + 32];
    int saved = errno;
    if (log) {
        int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", what, first, second);
        int file = open(log, O_WRONLY | O_APPEND | O_CREAT, 0600);
        ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
        if (file >= 0) {
            if (real(file, line, (size_t)length) < 0) perror("log");
            close(file);
        }
    }
    errno = saved;
}

ssize_t read(int file, void *to, size_t count) {
    ssize_t (*real)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    return fails("read", file) ? -1 : real(file, to, count);
}

ssize_t write(int file, const void *from, size_t count) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return fails("write", file) ? -1 : real(file, from, count);
}

int fsync(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    char path[PATH_MAX];
    if (fails("fsync", file)) return -1;
    if (path_of(file, path)) log_line("fsync", path, "");
    return real(file);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    log_line("rename", from, to);
    return real(from, to);
}

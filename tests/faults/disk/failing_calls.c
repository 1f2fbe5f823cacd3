/* Preloaded into a command: the N-th call of one kind on a file below a folder fails, or all wait; renames are logged.

   FAULT_UNDER  folder whose files are concerned
   FAULT_CALL   "read" (pread and readv, too), "write" (pwrite and writev, too), "fsync", "close" or "rename";
                "none" lets all go well, and FAULT_FIRED has a line for each
   FAULT_ERRNO  the error of the failing calls; 0 lets each wait 20 ms instead
   FAULT_FROM   number of the first call that fails; FAULT_COUNT that of calls that fail from there on
   FAULT_LOG    file that gets a line for each fsync and rename
   FAULT_FIRED  file that gets a line for each call that failed or waited */
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
#include <sys/uio.h>
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

static void line_in(const char *file, const char *what, const char *first, const char *second);

static void log_line(const char *what, const char *first, const char *second) {
    line_in("FAULT_LOG", what, first, second);
}

static int fails_at(const char *call, const char *path) {
    const char *chosen = getenv("FAULT_CALL");
    if (!chosen || !concerned(path)) return 0;
    if (strcmp(chosen, "none") == 0) line_in("FAULT_FIRED", call, path, "");
    if (strcmp(chosen, call) != 0) return 0;
    long nth = atomic_fetch_add(&calls, 1), error = number("FAULT_ERRNO", EIO), from = number("FAULT_FROM", 0);
    if (nth < from || nth >= from + number("FAULT_COUNT", LONG_MAX / 2)) return 0;
    line_in("FAULT_FIRED", call, path, "");
    if (error == 0) {
        usleep(20000);
        return 0;
    }
    errno = (int)error;
    return 1;
}

static int fails(const char *call, int file) {
    char path[PATH_MAX];
    int saved = errno;
    if (!getenv("FAULT_CALL") || !path_of(file, path)) {
        errno = saved;
        return 0;
    }
    errno = saved;
    return fails_at(call, path);
}

static void line_in(const char *variable, const char *what, const char *first, const char *second) {
    const char *log = getenv(variable);
    char line[2 * PATH_MAX + 32];
    int saved = errno;
    if (log) {
        int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", what, first, second);
        int file = open(log, O_WRONLY | O_APPEND | O_CREAT, 0600);
        ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
        int (*shut)(int) = dlsym(RTLD_NEXT, "close");
        if (file >= 0) {
            if (real(file, line, (size_t)length) < 0) perror("log");
            shut(file);
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

ssize_t pread64(int file, void *to, size_t count, off64_t place) {
    ssize_t (*real)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pread64");
    return fails("read", file) ? -1 : real(file, to, count, place);
}

ssize_t pread(int file, void *to, size_t count, off_t place) { return pread64(file, to, count, place); }

ssize_t readv(int file, const struct iovec *to, int count) {
    ssize_t (*real)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "readv");
    return fails("read", file) ? -1 : real(file, to, count);
}

ssize_t pwrite64(int file, const void *from, size_t count, off64_t place) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    return fails("write", file) ? -1 : real(file, from, count, place);
}

ssize_t pwrite(int file, const void *from, size_t count, off_t place) { return pwrite64(file, from, count, place); }

ssize_t writev(int file, const struct iovec *from, int count) {
    ssize_t (*real)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "writev");
    return fails("write", file) ? -1 : real(file, from, count);
}

int close(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "close");
    int failed = fails("close", file), error = errno, result = real(file); /* it is closed all the same */
    if (failed) errno = error;
    return failed ? -1 : result;
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
    if (fails_at("rename", to)) return -1;
    log_line("rename", from, to);
    return real(from, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned int how) {
    int (*real)(int, const char *, int, const char *, unsigned int) = dlsym(RTLD_NEXT, "renameat2");
    if (fails_at("rename", to)) return -1;
    log_line("rename", from, to);
    return real(from_folder, from, to_folder, to, how);
}

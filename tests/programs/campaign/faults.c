/* Counts a process's calls to libc, and makes one of them fail or kill the process.
 *
 * Loaded with LD_PRELOAD into every process of a campaign; `shim.py` compiles it and fills in the control page, a file
 * that all processes map. Only calls with a path below the control page's root count, and forks and connections, which
 * have none. A call is addressed by the role of its process, its name, a pattern of its path, and its number among the
 * calls that match, over all processes of that role.
 *
 * It sees what goes through libc's symbols: Python, SQLite, torch and Rust do. Calls from within libc itself, such as
 * those of fclose, are not seen.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROLE_LENGTH 16
#define CALL_LENGTH 16
#define MAX_PROCESSES 256

enum action { KILL_BEFORE = 1, KILL_AFTER = 2, FAIL = 3, FAIL_FROM_HERE = 4 };

/* `shim.Control` has the same fields. */
struct control {
    int active;                /* calls are counted, and the fault strikes */
    int recording;             /* every call is written to `log` */
    char root[PATH_MAX];       /* without a slash at the end */
    char log[PATH_MAX];        /* a line for each call: ROLE CALL PATH, between tabs */
    char role[ROLE_LENGTH];
    char call[CALL_LENGTH];
    char pattern[PATH_MAX];    /* of the path below the root, as fnmatch has them */
    int number;                /* of the call among those that match, from 1 */
    int action;
    int error;                 /* errno of an action that fails */
    atomic_int matched;        /* calls that matched so far */
    atomic_int fired;          /* whether the fault has struck */
    atomic_int process_count;  /* that were registered; those after the last row have no row */
    struct { char role[ROLE_LENGTH]; int pid; } processes[MAX_PROCESSES];
};

static struct control *control;
static char role[ROLE_LENGTH] = "program";
static int forked;  /* children that this process has forked */

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* Give this process a role and enter it in the table of processes. */
static void enter(const char *name) {
    snprintf(role, sizeof role, "%s", name);
    forked = 0;
    if (!control || !control->active) return;
    int row = atomic_fetch_add(&control->process_count, 1);
    if (row >= MAX_PROCESSES) return;
    memcpy(control->processes[row].role, role, sizeof role);
    control->processes[row].pid = getpid();
}

/* Map the control page that the environment names, and tell the role of a program by its arguments. */
__attribute__((constructor)) static void load(int count, char **arguments) {
    const char *path = getenv("CAMPAIGN_CONTROL");
    if (!path) return;
    int handle = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (handle < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    syscall(SYS_close, handle);
    if (page == MAP_FAILED) return;
    control = page;
    for (int number = 1; number < count; number++) {
        if (!strcmp(arguments[number], "harness.cli")) enter("harness");
        if (strstr(arguments[number], "forkserver_process.py")) enter("forkserver");
    }
}

static void record(const char *call, const char *path) {
    char line[2 * PATH_MAX];
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", role, call, path);
    int handle = (int)syscall(SYS_openat, AT_FDCWD, control->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (handle < 0) return;
    syscall(SYS_write, handle, line, (size_t)length);
    syscall(SYS_close, handle);
}

static int is_written(const char *call) {
    return !strcmp(call, "write") || !strcmp(call, "create") || !strcmp(call, "mkdir");
}

/* Count a call. Return the action that it is hit by, 0 for none; a process to be killed before it ends in here. */
static int hit(const char *call, const char *path) {
    int saved = errno;
    if (control->recording) record(call, path);
    int action = 0;
    if (control->action == FAIL_FROM_HERE && atomic_load(&control->fired) && is_written(call)) {
        action = FAIL;
    } else if (control->action && !strcmp(control->call, call) && !strcmp(control->role, role) &&
               !fnmatch(control->pattern, path, FNM_PATHNAME) &&
               atomic_fetch_add(&control->matched, 1) + 1 == control->number) {
        atomic_store(&control->fired, 1);
        action = control->action == FAIL_FROM_HERE ? FAIL : control->action;
    }
    if (action == KILL_BEFORE) syscall(SYS_kill, getpid(), SIGKILL);
    errno = action == FAIL ? control->error : saved;
    return action;
}

static void after(int action) {
    if (action == KILL_AFTER) syscall(SYS_kill, getpid(), SIGKILL);
}

/* Return the part of an absolute path below the root, NULL for a path elsewhere. */
static const char *below_root(const char *path) {
    size_t length = strlen(control->root);
    if (strncmp(path, control->root, length) || (path[length] != '/' && path[length])) return NULL;
    return path[length] ? path + length + 1 : ".";
}

static int is_active(void) { return control && control->active; }

/* Write the absolute path of an open file or folder into `buffer`; return 0 if it has none. */
static int path_of(int handle, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, (size_t)PATH_MAX - 1);
    if (length <= 0) return 0;
    buffer[length] = 0;
    return buffer[0] == '/';
}

static int hit_handle(const char *call, int handle) {
    char buffer[PATH_MAX];
    int saved = errno;
    if (!is_active() || handle < 0) return 0;
    const char *path = path_of(handle, buffer) ? below_root(buffer) : NULL;
    errno = saved;
    return path ? hit(call, path) : 0;
}

static int hit_path(const char *call, int folder, const char *path) {
    char buffer[2 * PATH_MAX];
    if (!is_active() || !path) return 0;
    int saved = errno;
    if (path[0] == '/') {
        snprintf(buffer, sizeof buffer, "%s", path);
    } else {
        if (folder == AT_FDCWD ? !getcwd(buffer, PATH_MAX) : !path_of(folder, buffer)) return 0;
        size_t length = strlen(buffer);
        snprintf(buffer + length, sizeof buffer - length, "/%s", path);
    }
    const char *below = below_root(buffer);
    errno = saved;
    return below ? hit(call, below) : 0;
}

static const char *opening(int flags) {
    return flags & (O_CREAT | O_WRONLY | O_RDWR) ? "create" : "open";
}

#define FAILS(action) ((action) == FAIL)

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                       \
        NEXT(name);                                                    \
        va_list more;                                                  \
        va_start(more, flags);                                         \
        mode_t mode = va_arg(more, mode_t);                            \
        va_end(more);                                                  \
        int action = hit_path(opening(flags), AT_FDCWD, path);         \
        if (FAILS(action)) return -1;                                  \
        int handle = next(path, flags, mode);                          \
        after(action);                                                 \
        return handle;                                                 \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                   \
    int name(int folder, const char *path, int flags, ...) {           \
        NEXT(name);                                                    \
        va_list more;                                                  \
        va_start(more, flags);                                         \
        mode_t mode = va_arg(more, mode_t);                            \
        va_end(more);                                                  \
        int action = hit_path(opening(flags), folder, path);           \
        if (FAILS(action)) return -1;                                  \
        int handle = next(folder, path, flags, mode);                  \
        after(action);                                                 \
        return handle;                                                 \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                          \
    FILE *name(const char *path, const char *mode) {                                         \
        NEXT(name);                                                                          \
        int action = hit_path(mode[0] == 'r' && mode[1] != '+' ? "open" : "create", AT_FDCWD, path); \
        if (FAILS(action)) return NULL;                                                      \
        FILE *file = next(path, mode);                                                       \
        after(action);                                                                       \
        return file;                                                                         \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* A function whose first parameter is an open file. */
#define HANDLE(type, name, call, parameters, arguments, handle)        \
    type name parameters {                                             \
        NEXT(name);                                                    \
        int action = hit_handle(call, handle);                         \
        if (FAILS(action)) return -1;                                  \
        type result = next arguments;                                  \
        after(action);                                                 \
        return result;                                                 \
    }
HANDLE(ssize_t, write, "write", (int file, const void *data, size_t size), (file, data, size), file)
HANDLE(ssize_t, writev, "write", (int file, const struct iovec *data, int count), (file, data, count), file)
HANDLE(ssize_t, pwrite, "write", (int file, const void *data, size_t size, off_t at), (file, data, size, at), file)
HANDLE(ssize_t, pwrite64, "write", (int file, const void *data, size_t size, off64_t at), (file, data, size, at), file)
HANDLE(int, ftruncate, "write", (int file, off_t size), (file, size), file)
HANDLE(int, ftruncate64, "write", (int file, off64_t size), (file, size), file)
ssize_t sendfile(int, int, off_t *, size_t);
ssize_t sendfile64(int, int, off64_t *, size_t);
HANDLE(ssize_t, sendfile, "write", (int to, int from, off_t *at, size_t size), (to, from, at, size), to)
HANDLE(ssize_t, sendfile64, "write", (int to, int from, off64_t *at, size_t size), (to, from, at, size), to)
HANDLE(int, fsync, "fsync", (int file), (file), file)
HANDLE(int, fdatasync, "fsync", (int file), (file), file)

/* A function of a path. */
#define PATH(name, call, parameters, arguments, folder, path)          \
    int name parameters {                                              \
        NEXT(name);                                                    \
        int action = hit_path(call, folder, path);                     \
        if (FAILS(action)) return -1;                                  \
        int result = next arguments;                                   \
        after(action);                                                 \
        return result;                                                 \
    }
PATH(mkdir, "mkdir", (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
PATH(mkdirat, "mkdir", (int folder, const char *path, mode_t mode), (folder, path, mode), folder, path)
PATH(unlink, "unlink", (const char *path), (path), AT_FDCWD, path)
PATH(rmdir, "unlink", (const char *path), (path), AT_FDCWD, path)
PATH(unlinkat, "unlink", (int folder, const char *path, int flags), (folder, path, flags), folder, path)
PATH(rename, "rename", (const char *from, const char *to), (from, to), AT_FDCWD, to)
PATH(renameat, "rename", (int a, const char *from, int b, const char *to), (a, from, b, to), b, to)
PATH(renameat2, "rename", (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), b,
     to)

int connect(int handle, const struct sockaddr *address, socklen_t length) {
    NEXT(connect);
    const char *family = address->sa_family == AF_UNIX ? "unix" : "inet";
    int action = is_active() ? hit("connect", family) : 0;
    if (FAILS(action)) return -1;
    int result = next(handle, address, length);
    int saved = errno;
    after(action);
    errno = saved;
    return result;
}

/* Give a forked process the role that follows from its parent's. */
static void inherit_role(int number) {
    char name[ROLE_LENGTH];
    if (!strcmp(role, "forkserver")) {
        snprintf(name, sizeof name, "rank%d", number % 2);  /* trials have two ranks each */
    } else if (!strncmp(role, "rank", 4)) {
        snprintf(name, sizeof name, "worker");
    } else {
        snprintf(name, sizeof name, "program");
    }
    enter(name);
}

static pid_t fork_counted(int runs_program) {
    NEXT(fork);
    int action = is_active() ? hit("fork", "") : 0;
    if (FAILS(action)) return -1;
    int number = runs_program ? 0 : forked++;
    pid_t pid = next();
    if (pid == 0 && runs_program) enter("program");
    if (pid == 0 && !runs_program) inherit_role(number);
    if (pid > 0) after(action);
    return pid;
}

pid_t fork(void) { return fork_counted(0); }

/* Python starts programs with it. A child that shared our memory would count its calls as ours. */
pid_t vfork(void) { return fork_counted(1); }

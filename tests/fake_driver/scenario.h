/* What both libraries read: the file that FAKE_DRIVER names.
 *
 * Lines of `key=value`. Those before the first `[device]` are the machine's, those behind each
 * `[device]` that device's. A key that is a function's name holds the number that it returns.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MACHINE (-1)
#define MOST_DEVICES 16
#define MOST_LINES 1024

static struct { int device; char *key, *value; } lines[MOST_LINES];
static int n_lines, n_devices;
static char content[65536];

__attribute__((constructor)) static void read_scenario(void) {
    const char *path = getenv("FAKE_DRIVER");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t size = file < 0 ? 0 : read(file, content, sizeof content - 1);
    if (file >= 0) close(file);
    content[size < 0 ? 0 : size] = 0;
    for (char *line = strtok(content, "\n"); line && n_lines < MOST_LINES; line = strtok(NULL, "\n")) {
        char *equals = strchr(line, '=');
        if (!strcmp(line, "[device]")) { n_devices++; continue; }
        if (!equals) continue;
        *equals = 0;
        for (char *end; (end = strstr(equals + 1, "\\n"));) { /* an end of line within a value */
            *end = '\n';
            memmove(end + 1, end + 2, strlen(end + 2) + 1);
        }
        lines[n_lines].device = n_devices - 1;
        lines[n_lines].key = line;
        lines[n_lines++].value = equals + 1;
    }
}

static const char *text(int device, const char *key) {
    for (int i = 0; i < n_lines; i++)
        if (lines[i].device == device && !strcmp(lines[i].key, key)) return lines[i].value;
    return NULL;
}

static long long number(int device, const char *key, long long otherwise) {
    const char *found = text(device, key);
    return found ? atoll(found) : otherwise;
}

static int is(const char *key, const char *value) {
    const char *found = text(MACHINE, key);
    return found && !strcmp(found, value);
}

static void fill(char *target, unsigned size, const char *source) {
    if (size) snprintf(target, size, "%s", source ? source : "");
}

/* The path of a note that processes leave for each other, beside the scenario. */
static const char *note(const char *ending) {
    static char path[4096];
    snprintf(path, sizeof path, "%s.%s", getenv("FAKE_DRIVER") ? getenv("FAKE_DRIVER") : "", ending);
    return path;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Seconds since the first call of any process. */
static double since_first(void) {
    double began = now();
    FILE *file = fopen(note("began"), "wx");
    if (file) {
        fprintf(file, "%f", began);
        fclose(file);
    } else if ((file = fopen(note("began"), "r"))) {
        if (fscanf(file, "%lf", &began) != 1) began = now();
        fclose(file);
    }
    return now() - began;
}

/* Whether `not_ready_s` is not over; -1 is for ever. */
static int not_ready(void) {
    const char *found = text(MACHINE, "not_ready_s");
    if (!found) return 0;
    return atof(found) < 0 || since_first() < atof(found);
}

/* A process that stays, with whatever its parent has open. */
static void leave_one(void) {
    if (fork()) return;
    for (;;) pause();
}

/* What every call does first: print, hang, die, or be slow, after `after` calls that worked. */
static int enter(const char *call, int device) {
    static long long worked;
    const char *said = text(MACHINE, "print");
    if (said && write(STDOUT_FILENO, said, strlen(said)) < 0) return 999;
    if (is("daemon", call)) leave_one();
    if (is("slow", call)) usleep(1000 * number(MACHINE, "slow_ms", 500));
    if ((is("hang", call) || is("crash", call)) && worked++ >= number(MACHINE, "after", 0)) {
        if (is("crash", call)) {
            signal((int)number(MACHINE, "crash_signal", SIGSEGV), SIG_DFL);
            raise((int)number(MACHINE, "crash_signal", SIGSEGV));
        }
        for (;;) pause();
    }
    return (int)number(device, call, number(MACHINE, call, 0));
}

#define ENTER(device) \
    do { \
        int refused = enter(__func__, (device)); \
        if (refused) return refused; \
    } while (0)

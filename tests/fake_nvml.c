/* A libnvidia-ml.so.1 for tests, driven by the environment of the process that loads it.
 *
 * FAKE_COUNT devices; FAKE_INIT, FAKE_GET, FAKE_MEMORY and FAKE_BUSY are what those calls return.
 * FAKE_HANG and FAKE_CRASH name a call that hangs or dies of SIGSEGV, FAKE_AFTER how often it works
 * before. FAKE_PRINT is what nvmlDeviceGetMemoryInfo prints to standard output. Device n uses
 * n + 1 GiB and is busy 10 * (n + 1) percent.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;

static char devices[16];

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int is(const char *name, const char *call) {
    const char *text = getenv(name);
    return text && !strcmp(text, call);
}

static void fault(const char *call) {
    static int worked;
    if (!is("FAKE_HANG", call) && !is("FAKE_CRASH", call)) return;
    if (worked++ < number("FAKE_AFTER", 0)) return;
    if (is("FAKE_CRASH", call)) raise(SIGSEGV);
    for (;;) pause();
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    fault("init");
    return number("FAKE_INIT", 0);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = number("FAKE_COUNT", 1);
    return 0;
}

/* FAKE_GET is for the last device alone: the others are ours. */
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &devices[index];
    return (int)index == number("FAKE_COUNT", 1) - 1 ? number("FAKE_GET", 0) : 0;
}

/* Device n is GPU-n, and MIG-n is a slice of it; 6 is NVML_ERROR_NOT_FOUND. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int index = strlen(uuid) == 5 ? uuid[4] - '0' : -1;
    if (index < 0 || index >= number("FAKE_COUNT", 1)) return 6;
    *device = &devices[index];
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    const char *text = getenv("FAKE_PRINT");
    fault("memory");
    if (text && write(STDOUT_FILENO, text, strlen(text)) < 0) return 999;
    memory->total = 80ULL << 30;
    memory->used = (unsigned long long)((char *)device - devices + 1) << 30;
    memory->free = memory->total - memory->used;
    return number("FAKE_MEMORY", 0);
}

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    fault("busy");
    rates->gpu = 10 * ((char *)device - devices + 1);
    rates->memory = 1;
    return number("FAKE_BUSY", 0);
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error";
}

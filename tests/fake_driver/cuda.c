/* A libcuda.so.1 for tests: what app/probes/cuda_child.py asks, by the scenario of scenario.h. */
#include "scenario.h"

enum { NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_READY = 802 };

static int visible[MOST_DEVICES], n_visible;
static char contexts[MOST_DEVICES];

/* A board in MIG mode is no CUDA device: its instance is, if it has one. */
static int usable(int device) {
    return !number(device, "mig", 0) || text(device, "mig_uuid");
}

static long long rank(int device) {
    const char *order = getenv("CUDA_DEVICE_ORDER");
    return order && !strcmp(order, "PCI_BUS_ID") ? device : number(device, "cuda_order", device);
}

static int named(int device, const char *name) {
    const char *board = text(device, "uuid"), *slice = text(device, "mig_uuid");
    return (board && !strncmp(board, name, strlen(name))) || (slice && !strcmp(slice, name));
}

/* CUDA_VISIBLE_DEVICES counts in CUDA's own order, and ends at the first name that is none. */
static void find_visible(void) {
    int ordered[MOST_DEVICES], n = 0;
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    char copy[1024];
    for (int device = 0; device < n_devices; device++) {
        int at = n;
        if (!usable(device)) continue;
        for (; at > 0 && rank(ordered[at - 1]) > rank(device); at--) ordered[at] = ordered[at - 1];
        ordered[at] = device;
        n++;
    }
    n_visible = 0;
    if (!wanted) {
        memcpy(visible, ordered, sizeof ordered);
        n_visible = n;
        return;
    }
    fill(copy, sizeof copy, wanted);
    for (char *name = strtok(copy, ","); name; name = strtok(NULL, ",")) {
        int found = -1;
        for (int i = 0; i < n; i++)
            if (*name >= '0' && *name <= '9' ? atoi(name) == i : named(ordered[i], name))
                found = ordered[i];
        if (found < 0) return;
        visible[n_visible++] = found;
    }
}

static void bytes_of(unsigned char *target, const char *uuid) {
    const char *digits = uuid ? uuid + 4 : "";
    for (int i = 0; i < 16; i++) {
        unsigned byte = 0;
        while (*digits == '-') digits++;
        if (sscanf(digits, "%2x", &byte) == 1) digits += 2;
        target[i] = (unsigned char)byte;
    }
}

int cuDriverGetVersion(int *version) {
    ENTER(MACHINE);
    *version = (int)number(MACHINE, "cuda_version", 13000);
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    ENTER(MACHINE);
    if (not_ready()) return NOT_READY;
    find_visible();
    return n_visible ? 0 : NO_DEVICE;
}

int cuDeviceGetCount(int *count) {
    ENTER(MACHINE);
    *count = n_visible;
    return 0;
}

int cuDeviceGet(int *device, int index) {
    if (index < 0 || index >= n_visible) return INVALID_DEVICE;
    ENTER(visible[index]);
    *device = visible[index];
    return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
    ENTER(device);
    fill(name, size, text(device, text(device, "mig_uuid") ? "mig_name" : "name"));
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER(device);
    switch (attribute) {
    case 16: *value = (int)number(device, "multiprocessors", 0); return 0;
    case 20: *value = (int)number(device, "compute_mode", 0); return 0;
    case 75: *value = (int)number(device, "major", 0); return 0;
    case 76: *value = (int)number(device, "minor", 0); return 0;
    default: return 1;
    }
}

static long long total(int device) {
    return number(device, "mig_total", number(device, "total", 0));
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER(device);
    *bytes = total(device);
    return 0;
}

int cuDeviceGetPCIBusId(char *id, int size, int device) {
    const char *pci = text(device, "pci");
    ENTER(device);
    fill(id, size, pci && strlen(pci) > 4 ? pci + 4 : pci); /* four digits of domain, unlike NVML */
    return 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    ENTER(device);
    bytes_of(uuid, text(device, "uuid"));
    return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER(device);
    bytes_of(uuid, text(device, text(device, "mig_uuid") ? "mig_uuid" : "uuid"));
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER(device);
    *context = &contexts[device];
    int file = open(note("context"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600); /* NVML finds it then */
    if (file >= 0) close(file);
    return 0;
}

int cuCtxSetCurrent(void *context) {
    (void)context;
    ENTER(MACHINE);
    return 0;
}

int cuMemGetInfo_v2(size_t *free, size_t *all) {
    int device = n_visible ? visible[0] : 0;
    ENTER(device);
    *all = total(device);
    *free = *all - number(device, "used", 0) - number(device, "reserved", 0);
    return 0;
}

/* A libnvidia-ml.so.1 for tests: what app/probes/nvml_child.py and gpu_use_child.py ask through
 * nvidia-ml-py, by the scenario of scenario.h. What a device's lines do not hold is not supported.
 */
#include "scenario.h"

enum { INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
enum { OF_A_SLICE = MOST_DEVICES }; /* handles of slices lie behind those of boards */

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { unsigned version, sensor; int degrees; } temperature_t;
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } fabric_t;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} fabric_v2_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci, subsystem;
    char id[32];
} pci_t;

static char handles[2 * MOST_DEVICES];

static int index_of(void *handle) {
    return (int)((char *)handle - handles) % MOST_DEVICES;
}

static int is_slice(void *handle) {
    return (char *)handle - handles >= OF_A_SLICE;
}

#define DEVICE \
    int device = index_of(handle); \
    ENTER(device)

/* A call that writes one number of the device's lines. */
#define TELLS(name, type, key) \
    int name(void *handle, type *value) { \
        DEVICE; \
        if (!text(device, key)) return NOT_SUPPORTED; \
        *value = (type)number(device, key, 0); \
        return 0; \
    }

/* A call that writes a current and a pending state. */
#define TELLS_TWICE(name, type, key) \
    int name(void *handle, type *current, type *pending) { \
        DEVICE; \
        if (!text(device, key)) return NOT_SUPPORTED; \
        *current = *pending = (type)number(device, key, 0); \
        return 0; \
    }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(MACHINE);
    since_first();
    return 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    ENTER(MACHINE);
    fill(version, size, text(MACHINE, "driver"));
    return 0;
}

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
    ENTER(MACHINE);
    snprintf(name, size, "program-%u", pid);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(MACHINE);
    *count = n_devices;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if ((int)index >= n_devices) return INVALID;
    ENTER((int)index);
    *handle = &handles[index];
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    ENTER(MACHINE);
    for (int device = 0; device < n_devices; device++) {
        const char *board = text(device, "uuid"), *slice = text(device, "mig_uuid");
        if (board && !strcmp(board, uuid)) return *handle = &handles[device], 0;
        if (slice && !strcmp(slice, uuid)) return *handle = &handles[OF_A_SLICE + device], 0;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    DEVICE;
    if (index || !text(device, "mig_uuid")) return NOT_FOUND;
    *slice = &handles[OF_A_SLICE + device];
    return 0;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) {
    DEVICE;
    fill(uuid, size, text(device, is_slice(handle) ? "mig_uuid" : "uuid"));
    return 0;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
    DEVICE;
    fill(name, size, text(device, "name"));
    return 0;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *info) {
    DEVICE;
    memset(info, 0, sizeof *info);
    fill(info->id, sizeof info->id, text(device, "pci"));
    return 0;
}

static long long reserved(int device) {
    return number(device, "reserved", 0);
}

/* With the context that the fake libcuda has left, of any process. */
static long long used(int device) {
    return number(device, "used", 0) + (access(note("context"), F_OK) ? 0 : 500LL << 20);
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    DEVICE;
    memory->total = number(device, "total", 0);
    memory->used = used(device) + reserved(device);
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2_t *memory) {
    DEVICE;
    memory->total = number(device, "total", 0);
    memory->used = used(device);
    memory->reserved = reserved(device);
    memory->free = memory->total - memory->used - memory->reserved;
    return 0;
}

/* `key` holds pid:bytes with blanks between; -1 bytes are unknown, as to an unprivileged user. */
static int processes(int device, const char *key, unsigned *count, process_t *found) {
    const char *rest = text(device, key);
    unsigned room = *count, n = 0;
    long long pid, bytes;
    int length;
    while (rest && sscanf(rest, " %lld:%lld%n", &pid, &bytes, &length) == 2) {
        if (found && n < room) found[n] = (process_t){(unsigned)pid, (unsigned long long)bytes, -1, -1};
        n++;
        rest += length;
    }
    *count = n;
    return n > room || (n && !found) ? TOO_SMALL : 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *found) {
    DEVICE;
    return processes(device, "processes", count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, process_t *found) {
    DEVICE;
    return processes(device, "graphics", count, found);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *found) {
    DEVICE;
    return processes(device, "mps", count, found);
}

TELLS_TWICE(nvmlDeviceGetEccMode, unsigned, "ecc")
TELLS_TWICE(nvmlDeviceGetMigMode, unsigned, "mig")
TELLS(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retirement_pending")
TELLS(nvmlDeviceGetComputeMode, unsigned, "compute_mode")
TELLS(nvmlDeviceGetPowerManagementLimit, unsigned, "power_mw")
TELLS(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "power_default_mw")
TELLS(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation")
TELLS(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_generation_max")
TELLS(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
TELLS(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width_max")
TELLS(nvmlDeviceGetPersistenceMode, unsigned, "persistence")
TELLS(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle")
TELLS(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "throttle")

int nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, unsigned long long *n) {
    DEVICE;
    if (!number(device, "ecc", 0)) return NOT_SUPPORTED;
    *n = type == 1 && counter == 0 ? number(device, "ecc_uncorrected", 0) : 7;
    return 0;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    DEVICE;
    if (!text(device, "remap_pending")) return NOT_SUPPORTED;
    *corrected = 3;
    *uncorrected = (unsigned)number(device, "remap_uncorrected", 0);
    *pending = (unsigned)number(device, "remap_pending", 0);
    *failed = (unsigned)number(device, "remap_failed", 0);
    return 0;
}

/* All of them for double-bit errors (1). */
int nvmlDeviceGetRetiredPages(void *handle, unsigned cause, unsigned *count, unsigned long long *pages) {
    DEVICE;
    if (!text(device, "retired")) return NOT_SUPPORTED;
    unsigned n = cause == 1 ? (unsigned)number(device, "retired", 0) : 0, room = *count;
    *count = n;
    if (n > room) return TOO_SMALL;
    for (unsigned i = 0; pages && i < n; i++) pages[i] = 4096ULL * i;
    return 0;
}

static int state(int device) {
    return text(MACHINE, "not_ready_s") && not_ready() ? 2 : (int)number(device, "fabric", 0);
}

int nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_v2_t *info) {
    DEVICE;
    if (!text(device, "fabric")) return NOT_SUPPORTED;
    info->status = (int)number(device, "fabric_status", 0);
    info->state = (unsigned char)state(device);
    return 0;
}

int nvmlDeviceGetGpuFabricInfo(void *handle, fabric_t *info) {
    DEVICE;
    if (!text(device, "fabric")) return NOT_SUPPORTED;
    info->status = (int)number(device, "fabric_status", 0);
    info->state = (unsigned char)state(device);
    return 0;
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *degrees) {
    DEVICE;
    (void)sensor;
    *degrees = (unsigned)number(device, "temperature", 30);
    return 0;
}

int nvmlDeviceGetTemperatureV(void *handle, temperature_t *temperature) {
    DEVICE;
    temperature->degrees = (int)number(device, "temperature", 30);
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, rates_t *rates) {
    DEVICE;
    if (is_slice(handle)) return NOT_SUPPORTED;
    rates->gpu = (unsigned)number(device, "busy", 0);
    rates->memory = 1;
    return 0;
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error";
}

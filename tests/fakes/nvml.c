/* A stand-in for libnvidia-ml.so.1, so that the real pynvml is exercised with its own ctypes structures.
 *
 * Every answer is looked up in the text file named by FAKE_NVML at the moment of the call, so that a test can
 * change it at any time. One line per answer: "DEVICE FIELD VALUE"; DEVICE is the index of the card, or
 * "CARD:INSTANCE" for a MIG instance, or "-" for the system. "!N" as VALUE makes the call return error N.
 * What is not listed is not supported.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char name[16]; } Device;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };

static Device devices[256];
static u32 events_delivered;

static int text(const char *device, const char *field, char *out, size_t size)
{
    char name[64], key[64], value[128];
    int result = NOT_SUPPORTED;
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return NOT_SUPPORTED;
    while (fscanf(file, "%63s %63s %127[^\n]", name, key, value) == 3) {
        if (strcmp(name, device) || strcmp(key, field))
            continue;
        result = value[0] == '!' ? atoi(value + 1) : OK;
        snprintf(out, size, "%s", value);
        break;
    }
    fclose(file);
    return result;
}

static int number(const Device *device, const char *field, u64 *out)
{
    char value[128];
    int result = text(device ? device->name : "-", field, value, sizeof value);
    if (result == OK)
        *out = strtoull(value, NULL, 0);
    return result;
}

static int number32(const Device *device, const char *field, u32 *out)
{
    u64 value;
    int result = number(device, field, &value);
    if (result == OK)
        *out = (u32)value;
    return result;
}

static Device *device_at(const char *name)
{
    for (int i = 0; i < 256; i++) {
        if (!devices[i].name[0])
            snprintf(devices[i].name, sizeof devices[i].name, "%s", name);
        if (!strcmp(devices[i].name, name))
            return &devices[i];
    }
    abort();
}

#define GET_U32(FUNCTION, FIELD) int FUNCTION(Device *d, u32 *out) { return number32(d, FIELD, out); }
#define GET_U64(FUNCTION, FIELD) int FUNCTION(Device *d, u64 *out) { return number(d, FIELD, out); }

int nvmlInitWithFlags(u32 flags)
{
    u64 none;
    (void)flags;
    int result = number(NULL, "init", &none);
    return result == NOT_SUPPORTED ? OK : result;
}
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(u32 *out) { return number32(NULL, "count", out); }
int nvmlSystemGetDriverVersion(char *out, u32 size) { return text("-", "driver", out, size); }

int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **out)
{
    char name[16];
    u64 none;
    snprintf(name, sizeof name, "%u", index);
    *out = device_at(name);
    int result = number(*out, "handle", &none);
    return result == NOT_SUPPORTED ? OK : result;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *card, u32 index, Device **out)
{
    char name[32], uuid[128];
    snprintf(name, sizeof name, "%s:%u", card->name, index);
    *out = device_at(name);
    return text(name, "uuid", uuid, sizeof uuid) == OK ? OK : NOT_FOUND;
}

int nvmlDeviceGetUUID(Device *d, char *out, u32 size) { return text(d->name, "uuid", out, size); }
int nvmlDeviceGetName(Device *d, char *out, u32 size) { return text(d->name, "name", out, size); }

typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *out)
{
    memset(out, 0, sizeof *out);
    return text(d->name, "pci", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetMigMode(Device *d, u32 *current, u32 *pending)
{
    *pending = 0;
    return number32(d, "mig", current);
}
GET_U32(nvmlDeviceGetMaxMigDeviceCount, "mig_max")

typedef struct { u32 gpu, memory; } Utilization;
int nvmlDeviceGetUtilizationRates(Device *d, Utilization *out)
{
    int result = number32(d, "util", &out->gpu);
    return result != OK ? result : number32(d, "memory_util", &out->memory);
}

int nvmlDeviceGetClockInfo(Device *d, int type, u32 *out) { return number32(d, type == 1 ? "sm_clock" : "memory_clock", out); }
int nvmlDeviceGetTemperature(Device *d, int sensor, u32 *out) { return sensor ? NOT_SUPPORTED : number32(d, "temperature", out); }
GET_U32(nvmlDeviceGetPowerUsage, "power")
GET_U32(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
GET_U64(nvmlDeviceGetCurrentClocksEventReasons, "reasons")
GET_U64(nvmlDeviceGetCurrentClocksThrottleReasons, "old_reasons")

typedef struct { u64 total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Device *d, Memory *out)
{
    int result = number(d, "memory_total", &out->total);
    if (result != OK || (result = number(d, "memory_used", &out->used)) != OK)
        return result;
    out->free = out->total - out->used;
    return OK;
}

GET_U32(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
GET_U32(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
GET_U32(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
GET_U32(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
int nvmlDeviceGetPcieThroughput(Device *d, int counter, u32 *out) { return number32(d, counter ? "pcie_rx" : "pcie_tx", out); }
int nvmlDeviceGetTotalEccErrors(Device *d, int type, int counter, u64 *out)
{
    return counter ? NOT_SUPPORTED : number(d, type ? "ecc_uncorrected" : "ecc_corrected", out);
}

int nvmlDeviceGetRemappedRows(Device *d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed)
{
    int result = number32(d, "remapped_corrected", corrected);
    if (result != OK || (result = number32(d, "remapped_uncorrected", uncorrected)) != OK)
        return result;
    *failed = 0;
    return number32(d, "remap_pending", pending);
}

int nvmlDeviceGetNvLinkState(Device *d, u32 link, u32 *active)
{
    char field[32];
    snprintf(field, sizeof field, "link%u", link);
    return number32(d, field, active);
}

int nvmlDeviceGetNvLinkErrorCounter(Device *d, u32 link, int counter, u64 *out)
{
    char field[32];
    snprintf(field, sizeof field, "link%u_error%d", link, counter);
    return number(d, field, out);
}

typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, u32 *count, Process *out)
{
    u32 have, room = *count;
    int result = number32(d, "processes", &have);
    if (result != OK)
        return result;
    *count = have;
    if (have > room)
        return INSUFFICIENT_SIZE;
    for (u32 i = 0; i < have; i++) {
        char field[32];
        snprintf(field, sizeof field, "pid%u", i);
        number32(d, field, &out[i].pid);
        snprintf(field, sizeof field, "pid%u_memory", i);
        if (number(d, field, &out[i].memory) != OK)
            out[i].memory = ~0ULL;
        out[i].gpu_instance = out[i].compute_instance = ~0U;
    }
    return OK;
}

int nvmlEventSetCreate(void **out)
{
    u64 none;
    *out = &events_delivered;
    int result = number(NULL, "events_supported", &none);
    return result;
}
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(Device *d, u64 types, void *set)
{
    u64 none;
    (void)types, (void)set;
    return number(d, "xid_supported", &none);
}

typedef struct { Device *device; u64 type, data; u32 gpu_instance, compute_instance; } Event;
int nvmlEventSetWait_v2(void *set, Event *out, u32 timeout_ms)
{
    u32 have = 0;
    char field[32], name[128];
    (void)set, (void)timeout_ms;
    number32(NULL, "events", &have);
    if (events_delivered >= have)
        return TIMEOUT;
    snprintf(field, sizeof field, "event%u_device", events_delivered);
    text("-", field, name, sizeof name);
    out->device = device_at(name);
    snprintf(field, sizeof field, "event%u_xid", events_delivered);
    number(NULL, field, &out->data);
    out->type = 8;
    events_delivered++;
    return OK;
}

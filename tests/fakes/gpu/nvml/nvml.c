/* A stand-in for libnvidia-ml.so.1 that knows what the file $RUNNER_FAKE_NVML says, one device a line:
 *
 *     gpu UUID MEMORY NAME...      a GPU
 *     mig UUID MEMORY NAME...      an instance of the GPU above it, which is then in MIG mode
 *
 *     is UUID KEY=VALUE... how it is: util=PERCENT used=BYTES bus=ADDRESS recovery=ACTION
 *                          xid=CODE (reported once to those who listen) error=CODE (of every question) hang=1 (no answer, ever)
 *                          cap=MAJOR.MINOR mig=1 (without instances) nvlink=LINKS@switch or nvlink=LINKS@BUS procs=PID:BYTES,... (procs=?: not told) draws=PID:BYTES,...
 *                          power=WATTS energy=JOULES temp=CELSIUS ecc=ERRORS throttle=BITS; after all others, as many lines as it takes
 *                          persist=0|1 remapped=ROWS
 *     driver VERSION CUDA  versions of the driver and of CUDA, as 580.65.06 and 13000
 *     hang init -          nvmlInit does not return
 *     error CODE -         nvmlInit fails: 9 driver not loaded, 18 driver and library mismatch
 *
 * "-" for UUID or MEMORY: the driver does not answer that question. A line "lost": no handle.
 * The file is read again whenever a device is looked for by its UUID, so that a test can change it.
 * nvmlDeviceGetMigMode and the lists of processes are left out when compiled with -DOLD, as in an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, TIMEOUT = 10, RECOVERY_ACTION = 230, XID_ERROR = 8 };
typedef struct { char kind[8], uuid[96], memory[32], name[400]; } Line;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } Pci;
typedef struct {
    unsigned field, scope; long long when, took; unsigned type; int outcome; unsigned long long value;
} Field;

static Line lines[256];
static int count;

static int is_device(const Line *line) {
    return !strcmp(line->kind, "gpu") || !strcmp(line->kind, "mig") || !strcmp(line->kind, "lost");
}
static int numbered(const char *kind, int from, unsigned index) {
    for (int i = from; i < count; i++) {
        int is_mig = !strcmp(lines[i].kind, "mig");
        if (!strcmp(kind, "mig") && !is_mig) return -1;
        if (strcmp(kind, "mig") && (is_mig || !is_device(&lines[i]))) continue;
        if (index-- == 0) return i;
    }
    return -1;
}

static int load(void) {
    FILE *file = fopen(getenv("RUNNER_FAKE_NVML"), "r");
    char text[640];
    for (count = 0; file && fgets(text, sizeof text, file); count++)
        if (sscanf(text, "is %95s %399[^\n]", lines[count].uuid, lines[count].name) >= 1)
            strcpy(lines[count].kind, "is");
        else
            sscanf(text, "%7s %95s %31s %399[^\n]", lines[count].kind, lines[count].uuid, lines[count].memory, lines[count].name);
    if (!file) return 9; /* driver not loaded */
    fclose(file);
    for (int i = 0; i < count; i++) {
        if (!strcmp(lines[i].kind, "hang")) for (;;) pause();
        if (!strcmp(lines[i].kind, "error")) return atoi(lines[i].uuid);
    }
    return OK;
}
/* What is said about a device under a key; NULL where nothing is. */
static const char *said(const Line *device, const char *key) {
    for (int i = 0; i < count; i++) {
        char *found = strcmp(lines[i].kind, "is") || strcmp(lines[i].uuid, device->uuid) ? NULL : strstr(lines[i].name, key);
        if (found) return found + strlen(key);
    }
    return NULL;
}
static int error(const Line *device) {
    const char *code = said(device, "error=");
    return code ? atoi(code) : OK;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return load(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "error"; }
int nvmlDeviceGetCount_v2(unsigned *answer) {
    for (*answer = 0; numbered("gpu", 0, *answer) >= 0; ++*answer) { }
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Line **device) {
    *device = &lines[numbered("gpu", 0, index)];
    return strcmp((*device)->kind, "lost") ? OK : LOST;
}
int nvmlDeviceGetMaxMigDeviceCount(Line *device, unsigned *answer) { (void)device; *answer = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Line *device, unsigned index, Line **instance) {
    int found = numbered("mig", (int)(device - lines) + 1, index);
    *instance = &lines[found < 0 ? 0 : found];
    return found < 0 ? NOT_FOUND : OK;
}
int nvmlDeviceGetUUID(Line *device, char *text, unsigned size) {
    snprintf(text, size, "%s", device->uuid);
    return strcmp(device->uuid, "-") ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetName(Line *device, char *text, unsigned size) {
    snprintf(text, size, "%s", device->name);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Line **device) {
    int missing = load();
    if (missing) return missing;
    for (int i = 0; i < count; i++)
        if (!strcmp(lines[i].uuid, uuid) && is_device(&lines[i])) {
            *device = &lines[i];
            if (said(*device, "hang=")) for (;;) pause();
            return strcmp(lines[i].kind, "lost") ? OK : LOST;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetUtilizationRates(Line *device, Utilization *answer) {
    const char *util = said(device, "util=");
    *answer = (Utilization){ util ? (unsigned)atoi(util) : 0, 0 };
    return error(device) ? error(device) : util ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetPciInfo_v3(Line *device, Pci *answer) {
    const char *bus = said(device, "bus=");
    memset(answer, 0, sizeof *answer);
    if (bus) sscanf(bus, "%31s", answer->address);
    return error(device) ? error(device) : bus ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetMemoryInfo(Line *device, Memory *memory) {
    const char *used = said(device, "used=");
    memory->used = used ? strtoull(used, NULL, 10) : 0;
    memory->total = strtoull(device->memory, NULL, 10);
    if (error(device)) return error(device);
    return strcmp(device->memory, "-") ? OK : NOT_SUPPORTED;
}
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
static int number(const Line *device, const char *key, unsigned long long *answer) {
    const char *text = said(device, key);
    *answer = text ? strtoull(text, NULL, 0) : 0;
    return error(device) ? error(device) : text ? OK : NOT_SUPPORTED;
}
static const Line *driver(void) {
    for (int i = 0; i < count; i++) if (!strcmp(lines[i].kind, "driver")) return &lines[i];
    return NULL;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    if (!driver()) return NOT_SUPPORTED;
    snprintf(text, size, "%s", driver()->uuid);
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *answer) {
    if (!driver()) return NOT_SUPPORTED;
    *answer = atoi(driver()->memory);
    return OK;
}
int nvmlDeviceGetPersistenceMode(Line *device, unsigned *mode) {
    unsigned long long answer;
    int outcome = number(device, "persist=", &answer);
    *mode = (unsigned)answer;
    return outcome;
}
int nvmlDeviceGetRemappedRows(Line *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    unsigned long long answer;
    int outcome = number(device, "remapped=", &answer);
    *corrected = (unsigned)answer;
    *uncorrected = *pending = *failed = 0;
    return outcome;
}
int nvmlDeviceGetPowerUsage(Line *device, unsigned *milliwatts) {
    unsigned long long watts;
    int outcome = number(device, "power=", &watts);
    *milliwatts = (unsigned)watts * 1000;
    return outcome;
}
int nvmlDeviceGetTotalEnergyConsumption(Line *device, unsigned long long *millijoules) {
    int outcome = number(device, "energy=", millijoules);
    *millijoules *= 1000;
    return outcome;
}
int nvmlDeviceGetTemperature(Line *device, unsigned sensor, unsigned *celsius) {
    unsigned long long answer;
    int outcome = number(device, "temp=", &answer);
    (void)sensor;
    *celsius = (unsigned)answer;
    return outcome;
}
int nvmlDeviceGetTotalEccErrors(Line *device, unsigned kind, unsigned since, unsigned long long *answer) {
    (void)kind; (void)since;
    return number(device, "ecc=", answer);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Line *device, unsigned long long *answer) {
    return number(device, "throttle=", answer);
}
int nvmlDeviceGetCudaComputeCapability(Line *device, int *major, int *minor) {
    const char *text = said(device, "cap=");
    *major = *minor = 0;
    return text && sscanf(text, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkState(Line *device, unsigned link, unsigned *on) {
    const char *text = said(device, "nvlink=");
    *on = 1;
    return text && link < (unsigned)atoi(text) ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Line *device, unsigned link, Pci *answer) {
    const char *text = said(device, "nvlink=");
    (void)link;
    memset(answer, 0, sizeof *answer);
    return text && sscanf(text, "%*d@%31s", answer->address) == 1 ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Line *device, unsigned link, unsigned *kind) {
    const char *text = said(device, "nvlink=");
    (void)link;
    *kind = text && strstr(text, "@switch") && strstr(text, "@switch") - text < 4 ? 2 : 0;
    return OK;
}
typedef struct { Line *device; unsigned long long type, data; unsigned instance, compute; } Event;
static int reported[256];
int nvmlEventSetCreate(void **set) { *set = reported; return OK; }
int nvmlDeviceRegisterEvents(Line *device, unsigned long long types, void *set) {
    (void)set;
    return error(device) ? error(device) : types == XID_ERROR ? OK : NOT_SUPPORTED;
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    (void)set; (void)milliseconds;
    load();
    for (int i = 0; i < count; i++) {
        const char *code = strcmp(lines[i].kind, "gpu") ? NULL : said(&lines[i], "xid=");
        if (code && reported[i] != atoi(code)) {
            reported[i] = atoi(code);
            *event = (Event){ &lines[i], XID_ERROR, (unsigned long long)reported[i], 0, 0 };
            return OK;
        }
    }
    return TIMEOUT;
}
#ifndef OLD
static int listed(Line *device, const char *key, unsigned *many, Process *found) {
    const char *text = said(device, key);
    unsigned there = 0, room = *many, pid;
    unsigned long long used;
    if (error(device)) return error(device);
    if (text && *text == '?') return NOT_SUPPORTED;
    for (; text && sscanf(text, "%u:%llu", &pid, &used) == 2; there++) {
        if (found && there < room) found[there] = (Process){ pid, used, 0, 0 };
        text += strcspn(text, ", ");
        text = *text == ',' ? text + 1 : NULL;
    }
    *many = there;
    return there > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Line *device, unsigned *many, Process *found) {
    return listed(device, "procs=", many, found);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Line *device, unsigned *many, Process *found) {
    return listed(device, "draws=", many, found);
}
int nvmlDeviceGetFieldValues(Line *device, int many, Field *fields) {
    const char *action = said(device, "recovery=");
    for (int i = 0; i < many; i++) {
        fields[i].outcome = action && fields[i].field == RECOVERY_ACTION ? OK : NOT_SUPPORTED;
        fields[i].value = action ? (unsigned long long)atoi(action) : 0;
    }
    return error(device);
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Line *instance, Line **device) {
    if (strcmp(instance->kind, "mig")) return NOT_SUPPORTED;
    for (*device = instance; !strcmp((*device)->kind, "mig"); --*device) { }
    return OK;
}
int nvmlDeviceGetMigMode(Line *device, unsigned *now, unsigned *next) {
    if (!strcmp(device->kind, "mig")) return NOT_SUPPORTED;
    *now = *next = said(device, "mig=") || numbered("mig", (int)(device - lines) + 1, 0) >= 0;
    return OK;
}
#endif

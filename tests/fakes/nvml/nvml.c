/* A stand-in for libnvidia-ml.so.1 that knows what the file $FAKE_NVML says, one device a line:
 *
 *     gpu UUID MEMORY NAME...      a GPU
 *     mig UUID MEMORY NAME...      an instance of the GPU above it, which is then in MIG mode
 *
 *     is UUID KEY=VALUE... how it is: util=PERCENT used=BYTES bus=ADDRESS recovery=ACTION
 *                          xid=CODE (reported once to those who listen) error=CODE (of every question) hang=1 (no answer, ever); after all others
 *
 * "-" for UUID or MEMORY: the driver does not answer that question. A line "lost": no handle.
 * The file is read again whenever a device is looked for by its UUID, so that a test can change it.
 * nvmlDeviceGetMigMode is left out when compiled with -DOLD, as in an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15, TIMEOUT = 10, RECOVERY_ACTION = 230, XID_ERROR = 8 };
typedef struct { char kind[8], uuid[96], memory[32], name[96]; } Line;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } Pci;
typedef struct {
    unsigned field, scope; long long when, took; unsigned type; int outcome; unsigned long long value;
} Field;

static Line lines[64];
static int count;

static int numbered(const char *kind, int from, unsigned index) {
    for (int i = from; i < count; i++) {
        int is_mig = !strcmp(lines[i].kind, "mig");
        if (!strcmp(kind, "mig") && !is_mig) return -1;
        if (strcmp(kind, "mig") && (is_mig || !strcmp(lines[i].kind, "is"))) continue;
        if (index-- == 0) return i;
    }
    return -1;
}

static int load(void) {
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    char text[512];
    for (count = 0; file && fgets(text, sizeof text, file); count++)
        if (sscanf(text, "is %95s %95[^\n]", lines[count].uuid, lines[count].name) >= 1)
            strcpy(lines[count].kind, "is");
        else
            sscanf(text, "%7s %95s %31s %95[^\n]", lines[count].kind, lines[count].uuid, lines[count].memory, lines[count].name);
    return file ? fclose(file) : 9; /* driver not loaded */
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
    for (int i = 0; i < count; i++)
        if (!strcmp(lines[i].uuid, uuid) && strcmp(lines[i].kind, "is")) {
            *device = &lines[i];
            if (said(*device, "hang=")) for (;;) pause();
            return strcmp(lines[i].kind, "lost") ? OK : LOST;
        }
    return missing ? missing : NOT_FOUND;
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
typedef struct { Line *device; unsigned long long type, data; unsigned instance, compute; } Event;
static int reported[64];
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
    *now = *next = numbered("mig", (int)(device - lines) + 1, 0) >= 0;
    return OK;
}
#endif

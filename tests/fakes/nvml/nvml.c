/* A stand-in for libnvidia-ml.so.1 that knows what the file $FAKE_NVML says, one device a line:
 *
 *     gpu UUID MEMORY NAME...      a GPU
 *     mig UUID MEMORY NAME...      an instance of the GPU above it, which is then in MIG mode
 *
 * "-" for UUID or MEMORY: the driver does not answer that question. A line "lost": no handle.
 * nvmlDeviceGetMigMode is left out when compiled with -DOLD, as in an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15 };
typedef struct { char kind[8], uuid[96], memory[32], name[96]; } Line;
typedef struct { unsigned long long total, free, used; } Memory;

static Line lines[64];
static int count;

static int numbered(const char *kind, int from, unsigned index) {
    for (int i = from; i < count; i++) {
        int is_mig = !strcmp(lines[i].kind, "mig");
        if (!strcmp(kind, "mig") && !is_mig) return -1;
        if (strcmp(kind, "mig") && is_mig) continue;
        if (index-- == 0) return i;
    }
    return -1;
}

int nvmlInitWithFlags(unsigned flags) {
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    char text[512];
    (void)flags;
    for (count = 0; file && fgets(text, sizeof text, file); count++)
        sscanf(text, "%7s %95s %31s %95[^\n]", lines[count].kind, lines[count].uuid, lines[count].memory, lines[count].name);
    return file ? fclose(file) : 9; /* driver not loaded */
}
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
int nvmlDeviceGetMemoryInfo(Line *device, Memory *memory) {
    memory->total = strtoull(device->memory, NULL, 10);
    return strcmp(device->memory, "-") ? OK : NOT_SUPPORTED;
}
#ifndef OLD
int nvmlDeviceGetMigMode(Line *device, unsigned *now, unsigned *next) {
    if (!strcmp(device->kind, "mig")) return NOT_SUPPORTED;
    *now = *next = numbered("mig", (int)(device - lines) + 1, 0) >= 0;
    return OK;
}
#endif

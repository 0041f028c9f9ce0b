// A GPU that is none: CUDA's runtime, as far as torch calls it, and the driver, as far as fxjit does, over host memory.
//
// Loaded before torch (LD_PRELOAD) under the driver's name, it makes a CUDA build of torch believe in DEVICES GPUs, whose memory
// is the host's. Copies copy. Torch's own kernels do nothing (machine.py has the processor's do their work), and a launch by
// the driver calls `on_launch`. Streams are numbers and work is done at once, but for a stream that records a graph:
// `on_graph` is told what begins (0), ends (1) and is launched (2).
#include <driver_types.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <time.h>
#include <utility>

namespace {
constexpr int DEVICES = 2;
enum { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_PERMITTED = 800, CAPTURE_UNSUPPORTED = 900, RELAXED = 2 };

struct Block { size_t size; int device; };
struct Graph { long number; };
struct Stream { int device, priority; Graph *graph; };
struct Event { double milliseconds; };

thread_local int device, depth, below[8], capture_mode, captures;
std::mutex lock;
std::map<uintptr_t, Block> blocks;
Stream defaults[DEVICES];
long graphs;
int (*on_launch)(void *, unsigned, unsigned, void *, void **);
void (*on_graph)(int, long);

Stream *of(void *stream)
{
    defaults[device].device = device;
    return stream != nullptr ? static_cast<Stream *>(stream) : &defaults[device];
}

const std::pair<const uintptr_t, Block> *block_at(const void *place)
{
    auto found = blocks.upper_bound(reinterpret_cast<uintptr_t>(place));
    if (found == blocks.begin()) {
        return nullptr;
    }
    found = std::prev(found);
    return reinterpret_cast<uintptr_t>(place) < found->first + found->second.size ? &*found : nullptr;
}

int allocate(void **place, size_t size)
{
    if (posix_memalign(place, 512, size != 0 ? size : 512) != 0) {
        return OUT_OF_MEMORY;
    }
    std::lock_guard<std::mutex> held(lock);
    blocks[reinterpret_cast<uintptr_t>(*place)] = {size, device};
    return 0;
}

int release(void *place)
{
    std::lock_guard<std::mutex> held(lock);
    blocks.erase(reinterpret_cast<uintptr_t>(place));
    free(place);
    return 0;
}

int make(Stream **made, int priority) { *made = new Stream{device, priority, nullptr}; return 0; }
}

extern "C" {
// For machine.py

void pretended_on_launch(int (*function)(void *, unsigned, unsigned, void *, void **)) { on_launch = function; }
void pretended_on_graph(void (*function)(int, long)) { on_graph = function; }

/* How many bytes of a GPU's memory there are from here on; 0: this is none. */
size_t pretended_extent(const void *place)
{
    std::lock_guard<std::mutex> held(lock);
    auto *found = block_at(place);
    return found == nullptr ? 0 : found->first + found->second.size - reinterpret_cast<uintptr_t>(place);
}

// Devices

int cudaGetDeviceCount(int *count) { *count = DEVICES; return 0; }
int cudaGetDevice(int *current) { *current = device; return 0; }
int cudaSetDevice(int wanted) { if (wanted < 0 || wanted >= DEVICES) return INVALID_DEVICE; device = wanted; return 0; }
int cudaDeviceCanAccessPeer(int *can, int, int) { *can = 1; return 0; }
int cudaDeviceEnablePeerAccess(int, unsigned) { return 0; }
int cudaDeviceGetAttribute(int *value, int, int) { *value = 1; return 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; if (greatest) *greatest = -5; return 0; }
int cudaDeviceGetPCIBusId(char *text, int size, int number) { snprintf(text, size, "0000:%02d:00.0", number); return 0; }
int cudaDeviceSynchronize() { return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }

int cudaGetDeviceProperties(cudaDeviceProp *facts, int)
{
    *facts = {};
    strcpy(facts->name, "Pretended GPU");
    facts->major = 9;
    facts->warpSize = 32;
    facts->multiProcessorCount = 132;
    facts->maxThreadsPerBlock = facts->maxThreadsDim[0] = facts->maxThreadsDim[1] = 1024;
    facts->maxThreadsDim[2] = 64;
    facts->maxThreadsPerMultiProcessor = 2048;
    facts->maxGridSize[0] = 2147483647;
    facts->maxGridSize[1] = facts->maxGridSize[2] = 65535;
    facts->regsPerBlock = facts->regsPerMultiprocessor = 65536;
    facts->sharedMemPerBlock = 48 << 10;
    facts->sharedMemPerBlockOptin = 227 << 10;
    facts->totalGlobalMem = size_t(140) << 30;
    return 0;
}

const char *cudaGetErrorString(int code)
{
    static char text[64];
    snprintf(text, sizeof text, code == OUT_OF_MEMORY ? "out of memory" : "pretended error %d", code);
    return text;
}
const char *cudaGetErrorName(int code) { return cudaGetErrorString(code); }
int cudaGetLastError() { return 0; }
int cudaPeekAtLastError() { return 0; }
int cudaGetDriverEntryPointByVersion(const char *, void **found, unsigned, unsigned long long, int *how)
{
    *found = nullptr;
    if (how != nullptr) *how = 1;
    return 1;
}

// Memory

int cudaMalloc(void **place, size_t size) { return allocate(place, size); }
int cudaFree(void *place) { return place == nullptr ? 0 : release(place); }
int cudaHostAlloc(void **place, size_t size, unsigned) { return posix_memalign(place, 512, size != 0 ? size : 512); }
int cudaFreeHost(void *place) { free(place); return 0; }
int cudaMemGetInfo(size_t *unused, size_t *all) { *unused = *all = size_t(140) << 30; return 0; }
int cudaMemcpy(void *to, const void *from, size_t size, int) { memmove(to, from, size); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int, void *stream)
{
    if (of(stream)->graph != nullptr) return CAPTURE_UNSUPPORTED;
    memmove(to, from, size);
    return 0;
}
int cudaMemset(void *to, int value, size_t size) { memset(to, value, size); return 0; }
int cudaMemsetAsync(void *to, int value, size_t size, void *) { memset(to, value, size); return 0; }
int cudaPointerGetAttributes(cudaPointerAttributes *facts, const void *place)
{
    std::lock_guard<std::mutex> held(lock);
    auto *found = block_at(place);
    *facts = {};
    facts->type = found != nullptr ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    facts->device = found != nullptr ? found->second.device : -2;
    facts->devicePointer = const_cast<void *>(place);
    return 0;
}

// Streams, events and graphs

int cudaStreamCreateWithPriority(Stream **made, unsigned, int priority) { return make(made, priority); }
int cudaStreamCreateWithFlags(Stream **made, unsigned) { return make(made, 0); }
int cudaStreamCreate(Stream **made) { return make(made, 0); }
int cudaStreamGetPriority(void *stream, int *priority) { *priority = of(stream)->priority; return 0; }
int cudaStreamDestroy(void *) { return 0; }
int cudaStreamQuery(void *) { return 0; }
int cudaStreamSynchronize(void *stream) { return of(stream)->graph != nullptr ? CAPTURE_UNSUPPORTED : 0; }
int cudaStreamWaitEvent(void *, Event *, unsigned) { return 0; }
int cudaThreadExchangeStreamCaptureMode(int *mode) { std::swap(capture_mode, *mode); return 0; }
int cudaStreamIsCapturing(void *stream, int *is) { *is = of(stream)->graph != nullptr; return 0; }
int cudaStreamGetCaptureInfo(void *stream, int *is, unsigned long long *number, void **graph, void *, void *, size_t *count)
{
    Stream *asked = of(stream);
    *is = asked->graph != nullptr;
    if (number != nullptr) *number = *is ? asked->graph->number : 0;
    if (graph != nullptr) *graph = asked->graph;
    if (count != nullptr) *count = 0;
    return 0;
}
int cudaStreamBeginCapture(void *stream, int)
{
    if (stream == nullptr || of(stream)->graph != nullptr) return NOT_PERMITTED;
    of(stream)->graph = new Graph{++graphs};
    captures++;
    on_graph(0, graphs);
    return 0;
}
int cudaStreamEndCapture(void *stream, Graph **made)
{
    *made = of(stream)->graph;
    of(stream)->graph = nullptr;
    if (*made == nullptr) return NOT_PERMITTED;
    captures--;
    on_graph(1, (*made)->number);
    return 0;
}
int cudaGraphInstantiateWithFlags(Graph **made, Graph *graph, unsigned long long) { *made = graph; return 0; }
int cudaGraphLaunch(Graph *graph, void *) { on_graph(2, graph->number); return 0; }
int cudaGraphGetNodes(Graph *, void **, size_t *count) { *count = 1; return 0; }
int cudaGraphDestroy(Graph *) { return 0; }
int cudaGraphExecDestroy(Graph *) { return 0; }

int cudaEventCreateWithFlags(Event **made, unsigned) { *made = new Event{0}; return 0; }
int cudaEventCreate(Event **made) { *made = new Event{0}; return 0; }
int cudaEventDestroy(Event *event) { delete event; return 0; }
int cudaEventQuery(Event *) { return 0; }
int cudaEventSynchronize(Event *) { return 0; }
int cudaEventRecord(Event *event, void *)
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->milliseconds = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    return 0;
}
int cudaEventRecordWithFlags(Event *event, void *stream, unsigned) { return cudaEventRecord(event, stream); }
int cudaEventElapsedTime(float *found, Event *a, Event *b) { *found = float(b->milliseconds - a->milliseconds); return 0; }

// Torch's own kernels

void **__cudaRegisterFatBinary(void *) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction() {}
void __cudaRegisterVar() {}
char __cudaInitModule(void **) { return 1; }
int __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return 0; }
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void *) { return 0; }
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream)
{
    *grid = *block = {1, 1, 1};
    *shared = 0;
    *stream = nullptr;
    return 0;
}
int __cudaLaunchKernel() { return 0; }
int cudaLaunchKernel() { return 0; }
int cudaLaunchKernelExC() { return 0; }
int cudaFuncSetAttribute() { return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *, int, size_t, unsigned) { *count = 8; return 0; }
int cudaFuncGetAttributes(cudaFuncAttributes *facts, const void *)
{
    *facts = {};
    facts->maxThreadsPerBlock = 1024;
    facts->binaryVersion = facts->ptxVersion = 90;
    return 0;
}

// The driver

int cuInit(unsigned) { return 0; }
int cuDevicePrimaryCtxRetain(void **context, int number) { *context = reinterpret_cast<void *>(uintptr_t(0x100 + number)); return 0; }
int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuCtxGetCurrent(void **context) { return cuDevicePrimaryCtxRetain(context, device); }
int cuCtxPushCurrent_v2(void *context)
{
    below[depth++] = device;
    return cudaSetDevice(int(reinterpret_cast<uintptr_t>(context)) - 0x100);
}
int cuCtxPopCurrent_v2(void **context) { cuCtxGetCurrent(context); return cudaSetDevice(below[--depth]); }
int cuThreadExchangeStreamCaptureMode(int *mode) { return cudaThreadExchangeStreamCaptureMode(mode); }
int cuModuleLoadData(void **module, const void *image)
{
    if (captures != 0 && capture_mode != RELAXED) return CAPTURE_UNSUPPORTED;
    *module = malloc(1);
    return memcmp(image, "\x7f" "ELF", 4) == 0 ? 0 : 200;
}
int cuModuleGetFunction(void **function, void *, const char *) { *function = malloc(1); return 0; }
int cuFuncGetAttribute(int *value, int, void *) { *value = 0; return 0; }
int cuFuncSetAttribute(void *, int, int value) { return value > 227 << 10; }
int cuGetErrorString(int, const char **text) { *text = "a pretended error"; return 0; }
int cuLaunchKernel(void *function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned, void *stream,
                   void **parameters, void **)
{
    Stream *asked = of(stream);
    return asked->device != device || grid == 0 ? 400 : on_launch(function, grid, threads, stream, parameters);
}
}

// A stand-in for libcuda: the driver's functions, and what tests ask and order.
//
// It records every call and every executed operation (fake_log) and runs copies, host functions and
// memory waits. Kernels run as the handler that a test registers. fake_driver.py also shows it under
// libamdhip64's names. Streams, captures and memory: fake_machine.h.
#include "fake_machine.h"

extern "C" {

// ---- what tests ask and order ----
int fake_log(char* out, int size) {
  std::lock_guard<std::mutex> lock(g_mutex);
  std::string all;
  for (const std::string& line : g_log) all += line + "\n";
  if (static_cast<int>(all.size()) + 1 > size) return -static_cast<int>(all.size()) - 1;
  std::memcpy(out, all.c_str(), all.size() + 1);
  return static_cast<int>(all.size());
}
void fake_clear_log() {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_log.clear();
}
void fake_reset(Size total, int arch) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_total = total;
  g_arch = arch;
  g_delay_us = g_sticky = 0;
  g_devices = g_memory_ops = 1;
  g_pin_limit = Size{1} << 40;
  g_failures.clear();
  g_sizes.clear();
  g_handlers.clear();
  g_log.clear();
}
void fake_set(const char* name, long value) {
  std::string key(name);
  if (key == "delay_us") g_delay_us = static_cast<int>(value);
  if (key == "devices") g_devices = static_cast<int>(value);
  if (key == "memory_ops") g_memory_ops = static_cast<int>(value);
  if (key == "pin_limit") g_pin_limit = static_cast<Size>(value);
  if (key == "sticky") g_sticky = static_cast<int>(value);
}
void fake_fail(const char* call, int status, int times) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_failures[call] = {status, times};
}
void fake_describe(const char* kernel, const int* sizes, int count) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_sizes[kernel] = std::vector<int>(sizes, sizes + count);
}
void fake_handle(const char* kernel, Handler handler) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_handlers[kernel] = handler;
}
long fake_live_bytes() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return static_cast<long>(g_live);
}
long fake_pinned_bytes() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return static_cast<long>(g_pinned_bytes);
}

// ---- the driver ----
#define FAIL_AS_ORDERED(name) \
  if (int status = failure(name)) return status

int cuInit(unsigned) { return kOk; }
int cuDriverGetVersion(int* out) { return *out = 13000, kOk; }
int cuDeviceGetCount(int* out) { return *out = g_devices, kOk; }
int cuDeviceGet(int* out, int index) { return *out = index, kOk; }
int cuDeviceGetName(char* out, int size, int) { return snprintf(out, size, "Fake GPU"), kOk; }
int cuDeviceGetAttribute(int* out, int attribute, int) {
  switch (attribute) {
    case 75: *out = g_arch / 10; break;
    case 76: *out = g_arch % 10; break;
    case 97: *out = 101376; break;
    case 74: *out = 65536; break;
    case 16: case 63: *out = 24; break;
    case 87: *out = 32; break;
    case 122: *out = g_memory_ops; break;
    default: *out = 1;
  }
  return kOk;
}
int cuDevicePrimaryCtxRetain(void** out, int) { return *out = &g_total, kOk; }
int cuDevicePrimaryCtxRelease_v2(int) { return log_line("context_release"), kOk; }
int cuCtxSetCurrent(void*) { return kOk; }
int hipSetDevice(int) { return kOk; }
int hipGetDevicePropertiesR0600(char* out, int) { return strcpy(out + 1160, "gfx1100:xnack-"), kOk; }
int cuGetErrorName(int status, const char** out) {
  if (status == kNoMemory) *out = "CUDA_ERROR_OUT_OF_MEMORY";
  else if (status == kUnjoined) *out = "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
  else if (status == kCaptureForbids) *out = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
  else if (status == 700) *out = "CUDA_ERROR_ILLEGAL_ADDRESS";
  else return kInvalid;
  return kOk;
}

int cuMemGetInfo_v2(Size* free_bytes, Size* total) {
  FAIL_AS_ORDERED("memory_info");
  std::lock_guard<std::mutex> lock(g_mutex);
  return *free_bytes = g_total - g_live, *total = g_total, kOk;
}
int cuMemAlloc_v2(uintptr_t* out, Size bytes) {
  FAIL_AS_ORDERED("allocate");
  if (int status = forbidden()) return status;
  std::lock_guard<std::mutex> lock(g_mutex);
  if (bytes > g_total - g_live) return kNoMemory;
  void* memory = nullptr;
  if (posix_memalign(&memory, 512, bytes) != 0) return kNoMemory;
  std::memset(memory, 0xFF, bytes);
  g_device[*out = reinterpret_cast<uintptr_t>(memory)] = bytes;
  g_live += bytes;
  return kOk;
}
int cuMemFree_v2(uintptr_t address) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = g_device.find(address);
  if (found == g_device.end()) return kInvalid;
  g_live -= found->second;
  g_device.erase(found);
  free(reinterpret_cast<void*>(address));
  return kOk;
}
int cuMemHostAlloc(void** out, Size bytes, unsigned flags) {
  FAIL_AS_ORDERED("host_allocate");
  if (int status = forbidden()) return status;
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_pinned_bytes + bytes > g_pin_limit) return kNoMemory;
  if (flags != 3 || posix_memalign(out, 4096, bytes) != 0) return kInvalid;
  std::memset(*out, 0xFF, bytes);
  g_pinned[reinterpret_cast<uintptr_t>(*out)] = bytes;
  g_pinned_bytes += bytes;
  return kOk;
}
int unpin(void* address, bool release) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = g_pinned.find(reinterpret_cast<uintptr_t>(address));
  if (found == g_pinned.end()) return kNotRegistered;
  g_pinned_bytes -= found->second;
  g_pinned.erase(found);
  if (release) free(address);
  return kOk;
}
int cuMemFreeHost(void* address) { return unpin(address, true); }
int cuMemHostRegister_v2(void* address, Size bytes, unsigned flags) {
  FAIL_AS_ORDERED("host_register");
  std::lock_guard<std::mutex> lock(g_mutex);
  uintptr_t start = reinterpret_cast<uintptr_t>(address);
  if (flags != 3 || bytes == 0) return kInvalid;
  if (inside(g_pinned, start, 1)) return kRegistered;
  if (g_pinned_bytes + bytes > g_pin_limit) return kNoMemory;
  g_pinned[start] = bytes;
  g_pinned_bytes += bytes;
  g_log.push_back("host_register " + std::to_string(bytes));
  return kOk;
}
int cuMemHostUnregister(void* address) { return unpin(address, false); }
int cuMemHostGetDevicePointer_v2(uintptr_t* out, void* address, unsigned) {
  uintptr_t start = reinterpret_cast<uintptr_t>(address);
  if (!pinned(start, 1)) return kNotRegistered;
  return *out = start, kOk;
}

int cuMemcpyHtoDAsync_v2(uintptr_t target, uintptr_t source, Size bytes, Stream* stream) {
  FAIL_AS_ORDERED("copy_in");
  if (!on_device(target, bytes)) return kInvalid;
  log_line("copy_in %zu %s", bytes, pinned(source, bytes) ? "pinned" : "pageable");
  return copy("copy_in", target, source, bytes, stream);
}
int cuMemcpyDtoHAsync_v2(uintptr_t target, uintptr_t source, Size bytes, Stream* stream) {
  FAIL_AS_ORDERED("copy_out");
  if (!on_device(source, bytes)) return kInvalid;
  log_line("copy_out %zu %s", bytes, pinned(target, bytes) ? "pinned" : "pageable");
  return copy("copy_out", target, source, bytes, stream);
}
int cuMemcpyDtoDAsync_v2(uintptr_t target, uintptr_t source, Size bytes, Stream* stream) {
  if (!on_device(source, bytes) || !on_device(target, bytes)) return kInvalid;
  return copy("copy_inside", target, source, bytes, stream);
}
int cuMemsetD8Async(uintptr_t target, unsigned char value, Size bytes, Stream* stream) {
  if (!on_device(target, bytes)) return kInvalid;
  return enqueue(stream, [=] { std::memset(reinterpret_cast<void*>(target), value, bytes); });
}

int cuStreamCreate(Stream** out, unsigned flags) {
  if (int status = forbidden()) return status;
  if (flags != 1) return kInvalid;
  return *out = new Stream(g_streams++), kOk;
}
int cuStreamDestroy_v2(Stream* stream) {
  stream->drain();
  delete stream;
  return kOk;
}
int cuStreamSynchronize(Stream* stream) {
  FAIL_AS_ORDERED("stream_synchronize");
  if (int status = forbidden()) return status;
  stream->drain();
  return failure("work");
}
int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  if (event->capture != nullptr && stream->capture == nullptr) {
    stream->capture = event->capture;  // the stream joins the capture here
    event->capture->streams.insert(stream);
  }
  if (stream->capture != nullptr) {
    if (event->capture != stream->capture) return stream->capture->broken = true, kIsolation;
    stream->capture->nodes.push_back({stream, nullptr, event->node});
    return kOk;
  }
  std::shared_ptr<Done> done = event->done;
  stream->push([done] { await(done->passed); });
  return kOk;
}
int cuEventCreate(Event** out, unsigned) { return *out = new Event, kOk; }
int cuEventDestroy_v2(Event* event) { return delete event, kOk; }
int cuEventRecord(Event* event, Stream* stream) {
  event->capture = stream->capture;
  if (stream->capture != nullptr) {
    stream->capture->nodes.push_back({stream, nullptr});
    event->node = static_cast<int>(stream->capture->nodes.size()) - 1;
    return kOk;
  }
  std::shared_ptr<Done> done = event->done = std::make_shared<Done>();
  stream->push([done] { done->set(); });
  return kOk;
}
int cuEventQuery(Event* event) {
  FAIL_AS_ORDERED("event_query");
  if (event->capture != nullptr) return event->capture->broken = true, kCaptureForbids;
  return event->done->passed.load() ? kOk : kNotReady;
}
int cuEventSynchronize(Event* event) {
  if (event->capture != nullptr) return event->capture->broken = true, kCaptureForbids;
  await(event->done->passed);
  return failure("work");
}
int cuEventElapsedTime(float* out, Event* from, Event* to) {
  std::chrono::duration<float, std::milli> passed = to->done->at - from->done->at;
  return *out = passed.count(), kOk;
}

int cuStreamWriteValue32_v2(Stream* stream, uintptr_t address, uint32_t value, unsigned flags) {
  if (!pinned(address, 4) || flags != 0) return kInvalid;
  log_line("write_value %u", value);
  return enqueue(stream, [=] {
    reinterpret_cast<std::atomic<uint32_t>*>(address)->store(value, std::memory_order_release);
    log_line("run write_value %u", value);
  });
}
int cuStreamWaitValue32_v2(Stream* stream, uintptr_t address, uint32_t value, unsigned flags) {
  if (!pinned(address, 4) || flags != 1) return kInvalid;
  log_line("wait_value %u", value);
  return enqueue(stream, [=] {
    auto* word = reinterpret_cast<std::atomic<uint32_t>*>(address);
    while (word->load(std::memory_order_acquire) != value) usleep(20);
    log_line("run wait_value %u", value);
  });
}
int cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* data) {
  log_line("host_function");
  return enqueue(stream, [=] {
    function(data);
    log_line("run host_function");
  });
}

int cuStreamBeginCapture_v2(Stream* stream, int mode) {
  if (mode != 1 || stream->capture != nullptr) return kInvalid;
  stream->capture = new Capture{stream, std::this_thread::get_id(), {}, {stream}};
  std::lock_guard<std::mutex> lock(g_mutex);
  g_captures[stream->capture->thread] = stream->capture;
  return kOk;
}
int cuStreamEndCapture(Stream* stream, Graph** out) {
  Capture* capture = stream->capture;
  *out = nullptr;
  if (capture == nullptr || capture->origin != stream) return kInvalid;
  for (Stream* one : capture->streams) one->capture = nullptr;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    g_captures.erase(capture->thread);
  }
  int status = capture->broken ? 901 : reaches_all(*capture) ? kOk : kUnjoined;
  if (status == kOk) *out = new Graph{capture->nodes, stream};
  log_line("capture_end %zu", capture->nodes.size());
  return status;  // the capture itself stays: events may still point to it
}
int cuGraphInstantiateWithFlags(Graph** out, Graph* graph, unsigned long long) {
  FAIL_AS_ORDERED("graph_instantiate");
  return *out = new Graph(*graph), kOk;
}
int cuGraphLaunch(Graph* graph, Stream* stream) {
  FAIL_AS_ORDERED("graph_launch");
  log_line("graph_launch");
  return enqueue(stream, [graph] { run_graph(*graph); });
}
int cuGraphDestroy(Graph* graph) { return delete graph, kOk; }
int cuGraphExecDestroy(Graph* graph) { return log_line("graph_destroy"), delete graph, kOk; }

int cuModuleLoadData(Module** out, const char* image) {
  FAIL_AS_ORDERED("module_load");
  if (int status = forbidden()) return status;
  Size size = strlen(image);
  if (memcmp(image, "\x7f" "ELF", 4) == 0) {
    uint64_t sections;
    uint16_t entry, count;
    memcpy(&sections, image + 40, 8);
    memcpy(&entry, image + 58, 2);
    memcpy(&count, image + 60, 2);
    size = sections + Size{entry} * count;
  } else if (memcmp(image, "FAKE ", 5) != 0) {
    return kBadImage;
  }
  log_line("module_load %zu", size);
  return *out = new Module{std::string(image, size)}, kOk;
}
int cuModuleUnload(Module* module) { return log_line("module_unload"), delete module, kOk; }
int cuModuleGetFunction(Function** out, Module* module, const char* name) {
  if (module->image.find(name) == std::string::npos) return kNotFound;
  return *out = new Function{name}, kOk;
}
int cuFuncGetAttribute(int* out, int, Function*) { return *out = 32, kOk; }
int cuFuncSetAttribute(Function* function, int attribute, int value) {
  return log_line("function_set %s %d %d", function->name.c_str(), attribute, value), kOk;
}
int cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, Stream* stream,
                   void** parameters, void** extra) {
  FAIL_AS_ORDERED("launch");
  if (extra != nullptr || stream == nullptr) return kInvalid;
  std::vector<int> sizes;
  Handler handler = nullptr;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    sizes = g_sizes[function->name];
    handler = g_handlers[function->name];
  }
  auto values = std::make_shared<std::vector<std::vector<char>>>();
  std::string text;
  for (size_t i = 0; i < sizes.size(); i++) {
    const char* from = static_cast<const char*>(parameters[i]);
    values->emplace_back(from, from + sizes[i]);
    uint64_t number = 0;
    memcpy(&number, from, static_cast<size_t>(sizes[i]));
    char word[32];
    snprintf(word, sizeof word, " %llx", static_cast<unsigned long long>(number));
    text += word;
  }
  log_line("launch %s grid %u %u %u block %u %u %u shared %u parameters%s", function->name.c_str(),
           x, y, z, block_x, block_y, block_z, shared, text.c_str());
  std::string name = function->name;
  return enqueue(stream, [=] {
    std::vector<void*> pointers;
    for (auto& value : *values) pointers.push_back(value.data());
    if (handler != nullptr) handler(pointers.data(), x, y, z);
    log_line("run launch %s", name.c_str());
  });
}

}  // extern "C"

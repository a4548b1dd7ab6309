// The machine behind the stand-in for libcuda (fake_libcuda.cpp): memory ranges, streams, graphs.
//
// Host memory is device memory; each stream is a thread; a capture is a list of nodes that a launch
// runs with a thread for each stream. It keeps the driver's rules that our code must keep: bounds,
// pinned memory, what a capture forbids, forks that must rejoin.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using Size = size_t;
enum {
  kOk = 0,
  kInvalid = 1,
  kNoMemory = 2,
  kNoDevice = 100,
  kBadImage = 200,
  kBadHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kRegistered = 712,
  kNotRegistered = 713,
  kCaptureForbids = 900,
  kUnjoined = 904,
  kIsolation = 905,
};

std::mutex g_mutex;  // everything below, and the log
std::vector<std::string> g_log;
std::map<uintptr_t, Size> g_device, g_pinned;
Size g_total = Size{1} << 30, g_live = 0, g_pin_limit = Size{1} << 40, g_pinned_bytes = 0;
int g_arch = 89, g_delay_us = 0, g_devices = 1, g_memory_ops = 1, g_sticky = 0;
std::map<std::string, std::pair<int, int>> g_failures;  // call -> status, times
std::map<std::string, std::vector<int>> g_sizes;        // kernel -> bytes of each parameter
using Handler = void (*)(void** parameters, unsigned x, unsigned y, unsigned z);
std::map<std::string, Handler> g_handlers;

void log_line(const char* format, ...) {
  char line[512];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  std::lock_guard<std::mutex> lock(g_mutex);
  g_log.push_back(line);
}

bool inside(const std::map<uintptr_t, Size>& ranges, uintptr_t address, Size bytes) {
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return false;
  auto range = std::prev(next);
  return address + bytes <= range->first + range->second;
}

bool on_device(uintptr_t address, Size bytes) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return inside(g_device, address, bytes);
}

bool pinned(uintptr_t address, Size bytes) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return inside(g_pinned, address, bytes);
}

// Failures that a test ordered; a sticky one answers every call from then on.
int failure(const char* name) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_sticky) return g_sticky;
  auto found = g_failures.find(name);
  if (found == g_failures.end() || found->second.second == 0) return kOk;
  found->second.second--;
  return found->second.first;
}

struct Done {
  std::atomic<bool> passed{false};
  std::chrono::steady_clock::time_point at{};
  void set() {
    at = std::chrono::steady_clock::now();
    passed.store(true, std::memory_order_release);
  }
};

struct Stream;
struct Capture;

struct Event {
  std::shared_ptr<Done> done = [] { auto d = std::make_shared<Done>(); d->set(); return d; }();
  Capture* capture = nullptr;  // recorded inside this capture, as its node `node`
  int node = -1;
};

// A captured operation: work, or the record of an event (-1 = neither waits for another node).
struct Node {
  Stream* stream;
  std::function<void()> work;
  int waits_for = -1;
};

struct Capture {
  Stream* origin;
  std::thread::id thread;
  std::vector<Node> nodes;
  std::set<Stream*> streams;
  bool broken = false;
};

std::map<std::thread::id, Capture*> g_captures;

struct Stream {
  int id;
  Capture* capture = nullptr;
  std::deque<std::function<void()>> queue;
  bool busy = false, ending = false;
  std::mutex mutex;
  std::condition_variable changed;
  std::thread worker;

  explicit Stream(int number) : id(number), worker([this] { run(); }) {}
  ~Stream() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      ending = true;
    }
    changed.notify_all();
    worker.join();
  }
  void push(std::function<void()> work) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_all();
  }
  void drain() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return ending || !queue.empty(); });
        if (queue.empty()) return;
        work = std::move(queue.front());
        queue.pop_front();
        busy = true;
      }
      work();
      {
        std::lock_guard<std::mutex> lock(mutex);
        busy = false;
      }
      changed.notify_all();
    }
  }
};

struct Graph {
  std::vector<Node> nodes;
  Stream* origin;
};

struct Module {
  std::string image;
};

struct Function {
  std::string name;
};

int g_streams = 0;

Capture* capturing_here() {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = g_captures.find(std::this_thread::get_id());
  return found == g_captures.end() ? nullptr : found->second;
}

// A call that a capture forbids: it fails and breaks the capture.
int forbidden() {
  Capture* capture = capturing_here();
  if (capture == nullptr) return kOk;
  capture->broken = true;
  return kCaptureForbids;
}

int enqueue(Stream* stream, std::function<void()> work) {
  if (stream == nullptr) return kBadHandle;
  if (stream->capture != nullptr) {
    stream->capture->nodes.push_back({stream, std::move(work)});
  } else {
    stream->push(std::move(work));
  }
  return kOk;
}

void await(const std::atomic<bool>& flag) {
  while (!flag.load(std::memory_order_acquire)) usleep(20);
}

void slow() {
  if (g_delay_us > 0) usleep(static_cast<useconds_t>(g_delay_us));
}

int copy(const char* name, uintptr_t target, uintptr_t source, Size bytes, Stream* stream) {
  if (stream == nullptr) return kBadHandle;
  int id = stream->id;
  return enqueue(stream, [=] {
    slow();
    std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), bytes);
    log_line("run %s %zu stream %d", name, bytes, id);
  });
}

bool reaches_all(const Capture& capture) {
  std::vector<int> last(1, -1);
  std::set<int> seen;
  for (int i = 0; i < static_cast<int>(capture.nodes.size()); i++)
    if (capture.nodes[i].stream == capture.origin) last[0] = i;
  while (!last.empty()) {
    int node = last.back();
    last.pop_back();
    if (node < 0 || !seen.insert(node).second) continue;
    last.push_back(capture.nodes[node].waits_for);
    for (int i = node - 1; i >= 0; i--)
      if (capture.nodes[i].stream == capture.nodes[node].stream) {
        last.push_back(i);
        break;
      }
  }
  return seen.size() == capture.nodes.size();
}

// Each captured stream on a thread of its own; a node is done when its thread has passed it.
void run_graph(const Graph& graph) {
  std::vector<Done> done(graph.nodes.size());
  std::set<Stream*> streams;
  for (const Node& node : graph.nodes) streams.insert(node.stream);
  std::vector<std::thread> threads;
  for (Stream* stream : streams)
    threads.emplace_back([&, stream] {
      for (size_t i = 0; i < graph.nodes.size(); i++) {
        const Node& node = graph.nodes[i];
        if (node.stream != stream) continue;
        if (node.waits_for >= 0) await(done[node.waits_for].passed);
        if (node.work) node.work();
        done[i].set();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

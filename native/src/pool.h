// The one pool of worker threads. The caller of run() is worker 0.
//
// A job is a function that every worker enters; inside, work is cut in phases (Phase below) whose
// units are taken from an atomic counter. Nobody waits for a worker that has not joined the job, so
// a worker that the system has put aside costs nothing, and one that is put aside inside a unit
// costs that unit. After a job, workers spin for about 2 ms and then sleep.
#ifndef FT_POOL_H_
#define FT_POOL_H_

#include <atomic>
#include <cstdint>

namespace ft {

using JobFn = void (*)(void* context, int worker);

class Pool {
 public:
  // Starts (or restarts) with `threads` workers, the caller included. Not to be called from a job.
  void start(int threads);
  void stop();
  int threads() const { return threads_; }
  // Runs fn(context, worker) on all workers, or on the caller alone.
  void run(JobFn fn, void* context, bool parallel);

 private:
  void work(int worker, uint32_t seen);

  struct Threads;
  Threads* sleepers_ = nullptr;  // threads, mutex and condition variable
  int threads_ = 1;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> gate_{0};  // top bit: open; rest: workers inside
  std::atomic<int> parked_{0};
  std::atomic<bool> quit_{false};
  JobFn fn_ = nullptr;
  void* context_ = nullptr;
};

Pool& pool();

// Waits politely: pause, and after a while yield the CPU.
class Backoff {
 public:
  void wait();

 private:
  int spins_ = 0;
};

// Units 0..count-1, each done once by whoever comes first; returns when all are done.
struct Phase {
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int64_t> done{0};

  template <class Body>
  void run(int64_t count, Body body) {
    int64_t mine = 0;
    for (;;) {
      int64_t unit = next.fetch_add(1, std::memory_order_relaxed);
      if (unit >= count) break;
      body(unit);
      ++mine;
    }
    if (mine > 0) done.fetch_add(mine, std::memory_order_acq_rel);
    Backoff backoff;
    while (done.load(std::memory_order_acquire) < count) backoff.wait();
  }
};

// The same for units that lie one behind the other in memory: each worker starts with a run of its
// own, since a stream that goes on is read faster than one that jumps (Zen 4, 2 threads: 28 GB/s
// without jumps, 20 with one every 64 KiB), and helps in the others' runs when that is done.
class StreamPhase {
 public:
  template <class Body>
  void run(int64_t count, int worker, int threads, Body body) {
    const int runs = threads < kRuns ? threads : kRuns;
    int64_t mine = 0;
    for (int i = 0; i < runs; ++i) {
      const int at = (worker + i) % runs;
      const int64_t first = count * at / runs, end = count * (at + 1) / runs;
      for (;;) {
        const int64_t unit = first + next_[at].value.fetch_add(1, std::memory_order_relaxed);
        if (unit >= end) break;
        body(unit);
        ++mine;
      }
    }
    if (mine > 0) done_.fetch_add(mine, std::memory_order_acq_rel);
    Backoff backoff;
    while (done_.load(std::memory_order_acquire) < count) backoff.wait();
  }

 private:
  static constexpr int kRuns = 16;
  struct alignas(64) Next {
    std::atomic<int64_t> value{0};
  };
  Next next_[kRuns];
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace ft

#endif  // FT_POOL_H_

#include "pool.h"

#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace ft {
namespace {

constexpr uint32_t kOpen = 1u << 31;
constexpr int kSpinsBeforeYield = 2000;
constexpr auto kSpinTime = std::chrono::milliseconds(2);

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

struct Pool::Threads {
  std::vector<std::thread> list;
  std::mutex mutex;
  std::condition_variable wake;
};

void Backoff::wait() {
  if (++spins_ < kSpinsBeforeYield) {
    cpu_pause();
  } else {
    sched_yield();
  }
}

Pool& pool() {
  static Pool* instance = new Pool;  // never destroyed: workers may outlive static destructors
  return *instance;
}

void Pool::start(int threads) {
  stop();
  if (sleepers_ == nullptr) sleepers_ = new Threads;
  quit_.store(false);
  threads_ = 1;
  const uint32_t seen = generation_.load();
  for (int worker = 1; worker < threads; ++worker) {
    sleepers_->list.emplace_back([this, worker, seen] { work(worker, seen); });
    ++threads_;
  }
}

void Pool::stop() {
  if (sleepers_ == nullptr || sleepers_->list.empty()) return;
  {
    std::lock_guard<std::mutex> lock(sleepers_->mutex);
    quit_.store(true);
  }
  sleepers_->wake.notify_all();
  for (auto& thread : sleepers_->list) thread.join();
  sleepers_->list.clear();
  threads_ = 1;
}

void Pool::run(JobFn fn, void* context, bool parallel) {
  if (!parallel || threads_ == 1) {
    fn(context, 0);
    return;
  }
  fn_ = fn;
  context_ = context;
  gate_.store(kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) {
    {
      std::lock_guard<std::mutex> lock(sleepers_->mutex);
    }
    sleepers_->wake.notify_all();
  }
  fn(context, 0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  Backoff backoff;
  while (gate_.load(std::memory_order_acquire) != 0) backoff.wait();
}

void Pool::work(int worker, uint32_t seen) {
  while (true) {
    auto start = std::chrono::steady_clock::now();
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (quit_.load(std::memory_order_relaxed)) return;
      cpu_pause();
      if ((++spins & 127) != 0) continue;
      if ((spins & 4095) == 0) sched_yield();
      if (std::chrono::steady_clock::now() - start < kSpinTime) continue;
      std::unique_lock<std::mutex> lock(sleepers_->mutex);
      parked_.fetch_add(1, std::memory_order_seq_cst);
      sleepers_->wake.wait(lock, [&] {
        return quit_.load() || generation_.load(std::memory_order_seq_cst) != seen;
      });
      parked_.fetch_sub(1, std::memory_order_seq_cst);
    }
    uint32_t gate = gate_.load(std::memory_order_acquire);
    bool joined = false;
    while ((gate & kOpen) != 0 && !joined)
      joined = gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel);
    seen = generation_.load(std::memory_order_acquire);
    if (!joined) continue;
    fn_(context_, worker);
    gate_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace ft

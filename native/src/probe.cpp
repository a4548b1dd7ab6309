// The probes of a machine: how fast memory is read, how fast products could be, and how far the CPUs
// of two workers are apart.
#include <algorithm>
#include <chrono>

#include "dispatch.h"
#include "pool.h"

namespace ft {
namespace {

constexpr int64_t kProbeUnitBytes = 1 << 20;
constexpr auto kPatience = std::chrono::milliseconds(50);

struct StreamJob {
  const uint64_t* data;
  int64_t words;
  int threads;
  std::atomic<uint64_t> sum{0};
  StreamPhase phase;
};

// Eight sums, so that the additions never wait for each other.
uint64_t sum_words(const uint64_t* p, int64_t n) {
  uint64_t sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += p[i + j];
  for (; i < n; ++i) sums[0] += p[i];
  uint64_t total = 0;
  for (uint64_t s : sums) total += s;
  return total;
}

constexpr int64_t kProductUnits = 64;  // so that a worker that is late does its part or leaves it

struct ProductJob {
  const KernelTable* table;
  int format;
  int64_t rounds;
  std::atomic<int64_t> multiply_adds{0};
  Phase phase;
};

// Workers 0 and 1 pass a number to and fro; both give up when nobody answers.
struct HandOverJob {
  int32_t rounds;
  alignas(64) std::atomic<int32_t> turn{0};
  alignas(64) std::atomic<bool> given_up{false};
  double ns = 0;
};

bool wait_for(HandOverJob& job, int32_t turn) {
  const auto start = std::chrono::steady_clock::now();
  for (int spins = 1; job.turn.load(std::memory_order_acquire) != turn; ++spins) {
    if (job.given_up.load(std::memory_order_relaxed)) return false;
    if (spins % 4096 == 0 && std::chrono::steady_clock::now() - start > kPatience) {
      job.given_up.store(true);
      return false;
    }
  }
  return true;
}

void hand_over(void* context, int worker) {
  auto& job = *static_cast<HandOverJob*>(context);
  if (worker > 1) return;
  const int32_t last = 2 * job.rounds;
  if (worker == 1) {
    for (int32_t turn = 1; turn < last; turn += 2) {
      if (!wait_for(job, turn)) return;
      job.turn.store(turn + 1, std::memory_order_release);
    }
    return;
  }
  job.turn.store(1, std::memory_order_release);
  if (!wait_for(job, 2)) return;  // the other one has come
  const auto start = std::chrono::steady_clock::now();
  for (int32_t turn = 3; turn < last; turn += 2) {
    job.turn.store(turn, std::memory_order_release);
    if (!wait_for(job, turn + 1)) return;
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  job.ns = took.count() / (2.0 * (job.rounds - 1));
}

}  // namespace
}  // namespace ft

extern "C" ft_status ft_stream_read(const void* data, int64_t bytes, uint64_t* checksum) {
  using namespace ft;
  if (!data || bytes < 0 || !checksum) return FT_ERR_ARGUMENT;
  if ((reinterpret_cast<uintptr_t>(data) & 7) != 0) return FT_ERR_ALIGN;
  std::lock_guard<std::mutex> lock(api_mutex());
  StreamJob job{};
  job.data = static_cast<const uint64_t*>(data);
  job.words = bytes / 8;
  job.threads = pool().threads();
  pool().run(
      [](void* context, int worker) {
        auto& j = *static_cast<StreamJob*>(context);
        const int64_t per_unit = kProbeUnitBytes / 8;
        const int64_t units = (j.words + per_unit - 1) / per_unit;
        j.phase.run(units, worker, j.threads, [&](int64_t unit) {
          const int64_t first = unit * per_unit;
          j.sum.fetch_add(sum_words(j.data + first, std::min(per_unit, j.words - first)));
        });
      },
      &job, true);
  *checksum = job.sum.load();
  return FT_OK;
}

extern "C" ft_status ft_products(uint32_t format, int64_t rounds, int64_t* multiply_adds) {
  using namespace ft;
  if (rounds < 1 || !multiply_adds) return FT_ERR_ARGUMENT;
  const int index = format_index(format);
  if (index < 0) return FT_ERR_FORMAT;
  std::lock_guard<std::mutex> lock(api_mutex());
  ProductJob job{};
  job.table = &kernels();
  job.format = index;
  job.rounds = rounds;
  pool().run(
      [](void* context, int) {
        auto& j = *static_cast<ProductJob*>(context);
        j.phase.run(kProductUnits * pool().threads(), [&](int64_t) {
          float sink;
          j.multiply_adds.fetch_add(j.rounds * j.table->peak_products(
              j.format, chosen_activations() == FT_ACTIVATIONS_INT8, j.rounds, &sink));
        });
      },
      &job, true);
  *multiply_adds = job.multiply_adds.load();
  return FT_OK;
}

extern "C" ft_status ft_hand_over(int32_t rounds, double* ns) {
  using namespace ft;
  if (rounds < 2 || rounds > (1 << 24) || !ns) return FT_ERR_ARGUMENT;
  std::lock_guard<std::mutex> lock(api_mutex());
  *ns = 0;
  if (pool().threads() < 2) return FT_OK;
  HandOverJob job{};
  job.rounds = rounds;
  pool().run(hand_over, &job, true);
  *ns = job.ns;
  return FT_OK;
}

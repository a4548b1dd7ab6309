// Life cycle and information.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#include "dispatch.h"
#include "pool.h"
#include "workspace.h"

namespace ft {
namespace {

constexpr int kMaxThreads = 1024;

int usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace
}  // namespace ft

extern "C" {

int32_t ft_abi_version(void) { return FT_ABI_VERSION; }

ft_status ft_init(int32_t num_threads) {
  using namespace ft;
  if (num_threads < 0 || num_threads > kMaxThreads) return FT_ERR_ARGUMENT;
  std::lock_guard<std::mutex> lock(api_mutex());
  try {
    pool().start(num_threads == 0 ? usable_cpus() : num_threads);
  } catch (...) {  // the system refuses another thread
    pool().stop();
    return FT_ERR_MEMORY;
  }
  choose_best_target();
  return FT_OK;
}

ft_status ft_shutdown(void) {
  using namespace ft;
  std::lock_guard<std::mutex> lock(api_mutex());
  pool().stop();
  release_workspace();
  return FT_OK;
}

ft_status ft_set_target(const char* name) {
  using namespace ft;
  if (!name) return FT_ERR_ARGUMENT;
  std::lock_guard<std::mutex> lock(api_mutex());
  return choose_target(name) ? FT_OK : FT_ERR_TARGET;
}

ft_status ft_set_activations(uint32_t kind) {
  using namespace ft;
  std::lock_guard<std::mutex> lock(api_mutex());
  return choose_activations(kind) ? FT_OK : FT_ERR_ARGUMENT;
}

int32_t ft_activation_bits(uint32_t format) {
  using namespace ft;
  std::lock_guard<std::mutex> lock(api_mutex());
  const int index = format_index(format);
  return index < 0 ? -1 : activation_bits(index);
}

ft_status ft_info(ft_info_args* info) {
  using namespace ft;
  if (!info) return FT_ERR_ARGUMENT;
  if (info->size != sizeof(ft_info_args)) return FT_ERR_SIZE;
  std::lock_guard<std::mutex> lock(api_mutex());
  info->abi_version = FT_ABI_VERSION;
  info->threads = pool().threads();
  info->activations = chosen_activations();
  std::snprintf(info->target, sizeof info->target, "%s", kernels().target);
  list_targets(info->targets, sizeof info->targets);
  list_cpu_features(info->features, sizeof info->features);
  return FT_OK;
}

const char* ft_status_text(ft_status status) {
  switch (status) {
    case FT_OK:
      return "ok";
    case FT_ERR_SIZE:
      return "the caller and the library are of different versions";
    case FT_ERR_ARGUMENT:
      return "a pointer is null or a shape does not fit";
    case FT_ERR_FORMAT:
      return "no kernel for this format";
    case FT_ERR_ALIGN:
      return "packed weights and scratch must be 64-byte aligned";
    case FT_ERR_EXPERT_ID:
      return "an expert id is out of range";
    case FT_ERR_SCRATCH:
      return "the scratch memory is too small";
    case FT_ERR_TARGET:
      return "this CPU target is not built in or the CPU lacks it";
    case FT_ERR_MEMORY:
      return "out of memory or threads";
    case FT_ERR_INDEX:
      return "a position, slot, page or row is out of range";
    default:
      return "unknown status";
  }
}

}  // extern "C"

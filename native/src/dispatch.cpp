#include "dispatch.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ft {
namespace {

struct Target {
  const KernelTable* table;
  bool (*usable)();
};

bool always() { return true; }

#if defined(FT_HAVE_AVX2)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
#endif
#if defined(FT_HAVE_AVX512)
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const Target kTargets[] = {  // best first
#if defined(FT_HAVE_AVX512)
    {&kAvx512Table, has_avx512},
#endif
#if defined(FT_HAVE_AVX2)
    {&kAvx2Table, has_avx2},
#endif
    {&kScalarTable, always},
};

const KernelTable* chosen = &kScalarTable;

void append(char* out, int64_t bytes, const char* word) {
  const size_t used = std::strlen(out);
  if (used + std::strlen(word) + 2 > static_cast<size_t>(bytes)) return;
  if (used > 0) std::strcat(out, ",");
  std::strcat(out, word);
}

}  // namespace

const KernelTable& kernels() { return *chosen; }

bool choose_target(const char* name) {
  for (const Target& target : kTargets) {
    if (std::strcmp(target.table->target, name) == 0 && target.usable()) {
      chosen = target.table;
      return true;
    }
  }
  return false;
}

void choose_best_target() {
  for (const Target& target : kTargets) {
    if (target.usable()) {
      chosen = target.table;
      return;
    }
  }
}

void list_targets(char* out, int64_t bytes) {
  out[0] = 0;
  for (const Target& target : kTargets)
    if (target.usable()) append(out, bytes, target.table->target);
}

void list_cpu_features(char* out, int64_t bytes) {
  out[0] = 0;
#if defined(__x86_64__)
#define FT_FEATURE(name) \
  if (__builtin_cpu_supports(name)) append(out, bytes, name);
  FT_FEATURE("sse4.2")
  FT_FEATURE("avx")
  FT_FEATURE("avx2")
  FT_FEATURE("fma")
  FT_FEATURE("f16c")
  FT_FEATURE("avx512f")
  FT_FEATURE("avx512bw")
  FT_FEATURE("avx512vl")
  FT_FEATURE("avx512dq")
  FT_FEATURE("avx512vnni")
  FT_FEATURE("avx512bf16")
  FT_FEATURE("avx512vbmi")
#undef FT_FEATURE
#else
  append(out, bytes, "generic");
#endif
}

// Zen 5 streams panels at 70 GB/s with 8 KiB ahead and at 46-54 GB/s without. Zen 4 is the other way
// round (q8_0, one token, one thread, of a probe of 27 GB/s: 24.5 without, 15.3 with 8 KiB), so the
// rest of the CPUs go without until they are measured.
int32_t prefetch_bytes() {
#if defined(__x86_64__)
  static const int32_t bytes = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(0, &a, &b, &c, &d) == 0 || b != 0x68747541u) return 0;  // "Auth"enticAMD
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return 0;
    const unsigned family = ((a >> 8) & 15) + ((a >> 20) & 255);
    return family == 0x1a ? 8192 : 0;
  }();
  return bytes;
#else
  return 0;
#endif
}

std::mutex& api_mutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

int format_index(uint32_t wire) {
  switch (wire) {
    case FT_F32:
      return kF32;
    case FT_F16:
      return kF16;
    case FT_BF16:
      return kBf16;
    case FT_Q8_0:
      return kQ8_0;
    case FT_Q4_0:
      return kQ4_0;
    case FT_Q4_1:
      return kQ4_1;
    default:
      return -1;
  }
}

int64_t group_elements(int format) {
  static const int64_t kElements[kNumFormats] = {1, 2, 2, 32, 32, 32};
  return kElements[format];
}

int64_t group_panel_bytes(int format) {
  static const int64_t kBytes[kNumFormats] = {4, 4, 4, 34, 18, 20};
  return kBytes[format] * kPanelRows;
}

}  // namespace ft

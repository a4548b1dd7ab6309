#include "dispatch.h"

#include <cstring>

#include "cpu_info.h"

namespace ft {
namespace {

struct Target {
  const KernelTable* table;
  bool (*usable)();
  bool exact;  // activations stay float32
};

bool always() { return true; }

#if defined(FT_HAVE_AVX2)
bool has_avx2() {
  const CpuInfo& cpu = cpu_info();
  return cpu.avx2 && cpu.fma && cpu.f16c;
}
#endif
#if defined(FT_HAVE_AVX512) || defined(FT_HAVE_AVX512BF16)
bool has_avx512() {
  const CpuInfo& cpu = cpu_info();
  return cpu.avx2 && cpu.fma && cpu.f16c && cpu.avx512f && cpu.avx512bw && cpu.avx512vl &&
         cpu.avx512dq;
}
#endif
#if defined(FT_HAVE_AVX512BF16)
bool has_avx512bf16() {
  const CpuInfo& cpu = cpu_info();
  return has_avx512() && cpu.avx512bf16 && cpu.avx512vnni && cpu.avx512vbmi;
}
#endif

const Target kTargets[] = {
// fastest first
#if defined(FT_HAVE_AVX512BF16)
    {&kAvx512Bf16Table, has_avx512bf16, false},
#endif
#if defined(FT_HAVE_AVX512)
    {&kAvx512Table, has_avx512, true},
#endif
#if defined(FT_HAVE_AVX2)
    {&kAvx2Table, has_avx2, true},
#endif
    {&kScalarTable, always, true},
};

const KernelTable* chosen = &kScalarTable;
uint32_t activations = FT_ACTIVATIONS_AUTO;

void append(char* out, int64_t bytes, const char* word) {
  const size_t used = std::strlen(out);
  if (used + std::strlen(word) + 2 > static_cast<size_t>(bytes)) return;
  if (used > 0) std::strcat(out, ",");
  std::strcat(out, word);
}

}  // namespace

const KernelTable& kernels() { return *chosen; }

const Products& products() { return chosen->products[activations == FT_ACTIVATIONS_INT8 ? 1 : 0]; }

bool choose_activations(uint32_t kind) {
  if (kind > FT_ACTIVATIONS_INT8) return false;
  activations = kind;
  return true;
}

uint32_t chosen_activations() { return activations; }

int32_t activation_bits(int format) {
  if ((kIntFormats >> format & 1) != 0) return products().bits;
  const bool packed = products().pack_row[format] != nullptr;
  return packed && products().packed_element_bytes == 2 ? 16 : 32;
}

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
    if (target.exact && target.usable()) {
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
  const CpuInfo& cpu = cpu_info();
  const struct {
    bool has;
    const char* name;
  } features[] = {
      {cpu.avx, "avx"},
      {cpu.avx2, "avx2"},
      {cpu.fma, "fma"},
      {cpu.f16c, "f16c"},
      {cpu.avx512f, "avx512f"},
      {cpu.avx512bw, "avx512bw"},
      {cpu.avx512vl, "avx512vl"},
      {cpu.avx512dq, "avx512dq"},
      {cpu.avx512vnni, "avx512vnni"},
      {cpu.avx512bf16, "avx512bf16"},
      {cpu.avx512vbmi, "avx512vbmi"},
  };
  for (const auto& feature : features)
    if (feature.has) append(out, bytes, feature.name);
}

// Zen 5 streams panels at 70 GB/s with 8 KiB ahead and at 46-54 GB/s without. Zen 4 is the other
// way round (q8_0, one token, one thread, of a probe of 27 GB/s: 24.5 without, 15.3 with 8 KiB), so
// the rest of the CPUs go without until they are measured.
int32_t prefetch_bytes() {
  const CpuInfo& cpu = cpu_info();
  return cpu.is_amd && cpu.family == 0x1a ? 8192 : 0;
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
    case FT_MXFP4:
      return kMxfp4;
    case FT_MXFP4_GGUF:
      return kMxfp4Gguf;
    case FT_NVFP4:
      return kNvfp4;
    case FT_NVFP4_DIV:
      return kNvfp4Div;
    case FT_FP8_TENSOR:
      return kFp8Tensor;
    case FT_FP8_BLOCK:
      return kFp8Block;
    case FT_Q5_0:
      return kQ5_0;
    case FT_Q5_1:
      return kQ5_1;
    case FT_Q4_K:
      return kQ4K;
    case FT_Q5_K:
      return kQ5K;
    case FT_Q6_K:
      return kQ6K;
    default:
      return -1;
  }
}

namespace {

// A row in groups: elements and bytes of one, and how many are laid out together.
struct Group {
  int64_t elements, bytes, joined;
};
const Group kGroups[kNumFormats] = {
    {1, 4, 1},   {2, 4, 1},   {2, 4, 1},  {32, 34, 1}, {32, 18, 1}, {32, 20, 1},
    {32, 17, 2}, {32, 17, 2}, {16, 9, 2}, {16, 9, 2},  {4, 4, 1},   {4, 4, 1},
    {32, 22, 1}, {32, 24, 1}, {256, 144, 1}, {256, 176, 1}, {256, 210, 1},
};

int64_t header_bytes(int format, int64_t cols) {
  if (format == kFp8Block) return scale_block_header_bytes(cols);
  const bool has_row_factors = format == kNvfp4 || format == kNvfp4Div || format == kFp8Tensor;
  return has_row_factors ? 4 * kPanelRows : 0;
}

}  // namespace

int64_t group_elements(int format) { return kGroups[format].elements; }

int64_t row_bytes(int format, int64_t cols) {
  return cols * kGroups[format].bytes / kGroups[format].elements;
}

int64_t panel_bytes(int format, int64_t cols) {
  const Group& group = kGroups[format];
  const int64_t groups = round_up(cols / group.elements, group.joined);
  return header_bytes(format, cols) + groups * group.bytes * kPanelRows;
}

}  // namespace ft

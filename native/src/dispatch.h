// Which targets this build and this CPU have, which one is used, and the lock around the API.
#ifndef FT_DISPATCH_H_
#define FT_DISPATCH_H_

#include <mutex>

#include "ft/abi.h"
#include "kernel_table.h"

namespace ft {

const KernelTable& kernels();
const Products& products();  // of the chosen target with the chosen activations
bool choose_target(const char* name);  // false: not usable here
void choose_best_target();  // the fastest that keeps activations in float32
bool choose_activations(uint32_t kind);  // FT_ACTIVATIONS_*; false: unknown
uint32_t chosen_activations();
// Bits of an activation in products of this format: 8 or 15 (integers), 16 (bfloat16), 32.
int32_t activation_bits(int format);
void list_targets(char* out, int64_t bytes);       // usable ones, best first, by commas
void list_cpu_features(char* out, int64_t bytes);  // by commas

// How far ahead weights are prefetched by software on this CPU; 0: the hardware does better alone.
int32_t prefetch_bytes();

std::mutex& api_mutex();

// Our index of a wire format, or -1.
int format_index(uint32_t wire);
// The number of columns must be a multiple of this.
int64_t group_elements(int format);
// Bytes of 32 rows in panel form.
int64_t panel_bytes(int format, int64_t cols);
// Formats whose activations the target wants packed before a product (Products::pack_row).
inline bool is_packed(int format) { return products().pack_row[format] != nullptr; }
// How rows are packed and panels multiplied where a panel meets about so many tokens.
struct Way {
  PackRow pack;  // or null
  MultiplyPanel panel;
};
inline Way way_for(int format, int64_t tokens) {
  const Products& p = products();
  if (tokens >= kManyTokens && p.panel_many[format] != nullptr)
    return {p.pack_many[format], p.panel_many[format]};
  return {p.pack_row[format], p.panel[format]};
}
// Formats of row-major tables (ft_embed_rows), and the bytes of their rows.
inline bool is_table_format(int format) {
  return format >= 0 && (format <= kQ4_1 || (kKFormats >> format & 1) != 0);
}
int64_t row_bytes(int format, int64_t cols);
// Wire formats of KV pools of that head size.
inline bool is_pool_format(uint32_t wire, int64_t head_dim) {
  return wire == FT_F32 || wire == FT_BF16 || (wire == FT_Q8_0 && head_dim % kKvGroup == 0);
}
// Floats of one activation row: as it is, or permuted with its extras; strides avoid cache
// aliasing.
inline int64_t packed_row_floats(int64_t cols) {
  return round_up(cols, kChunk) / kChunk * (kChunk + kExtras) / 16 * 16 + 32;
}
inline bool aligned64(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 63) == 0; }

// Multiply-adds below which waking the other workers costs more than it saves (about 10 us).
constexpr int64_t kParallelWork = 100000;

}  // namespace ft

#endif  // FT_DISPATCH_H_

// The CPU's share of a routed layer whose other experts a GPU computes: the (token, place) pairs whose
// row is negative. A task of hand_off.h; everything lies in buffers that the caller keeps.
#ifndef FT_CPU_PAIRS_H_
#define FT_CPU_PAIRS_H_

#include <stdint.h>

#include "ft/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

// parts[p] = down(act(gate(x[t])) * up(x[t])) of expert ids[p], for each pair p = t * places + s with
// rows[p] < 0; other parts stay as they are. Routing weights are not applied.
//   0 size  4 zero  8 ffn: bank, formats, sizes and scratch for tokens * places tokens of one slot
//   16 x f32 [tokens, hidden]  24 ids i32 [pairs]  32 rows i32 [pairs]  40 tokens  48 places
//   56 parts f32 [pairs, hidden]  64 work f32 [pairs, 2 * hidden + 1]  72 chosen i32 [2 * pairs]
typedef struct {
  uint32_t size;
  uint32_t zero;
  const ft_expert_ffn_args* ffn;
  const float* x;
  const int32_t* ids;
  const int32_t* rows;
  int64_t tokens;
  int64_t places;
  float* parts;
  float* work;
  int32_t* chosen;
} ft_cpu_pairs_args;
FT_STATIC_ASSERT(sizeof(ft_cpu_pairs_args) == 80, "layout");

FT_API ft_status ft_cpu_pairs(const ft_cpu_pairs_args* args);

#ifdef __cplusplus
}
#endif
#endif  // FT_CPU_PAIRS_H_

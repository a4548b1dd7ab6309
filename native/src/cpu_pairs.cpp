#include "ft/cpu_pairs.h"

#include <cstring>

extern "C" ft_status ft_cpu_pairs(const ft_cpu_pairs_args* args) {
  if (args == nullptr || args->size != sizeof(ft_cpu_pairs_args)) return FT_ERR_SIZE;
  const ft_cpu_pairs_args& a = *args;
  if (a.ffn == nullptr || a.tokens < 0 || a.places < 1) return FT_ERR_ARGUMENT;
  const int64_t hidden = a.ffn->hidden, pairs = a.tokens * a.places;
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(hidden);
  float* x = a.work;
  float* out = x + pairs * hidden;
  float* ones = out + pairs * hidden;
  int32_t* expert = a.chosen;
  int32_t* pair = a.chosen + pairs;
  int64_t count = 0;
  for (int64_t p = 0; p < pairs; ++p) {
    if (a.rows[p] >= 0) continue;
    std::memcpy(x + count * hidden, a.x + p / a.places * hidden, row_bytes);
    ones[count] = 1.0f;
    expert[count] = a.ids[p];
    pair[count++] = static_cast<int32_t>(p);
  }
  if (count == 0) return FT_OK;
  ft_expert_ffn_args ffn = *a.ffn;
  ffn.x = x;
  ffn.x_stride = hidden;
  ffn.tokens = count;
  ffn.expert_ids = expert;
  ffn.expert_weights = ones;
  ffn.slots = 1;
  ffn.out = out;
  ffn.out_stride = hidden;
  ffn.flags = 0;
  const ft_status status = ft_expert_ffn(&ffn);
  if (status != FT_OK) return status;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(a.parts + pair[i] * hidden, out + i * hidden, row_bytes);
  }
  return FT_OK;
}

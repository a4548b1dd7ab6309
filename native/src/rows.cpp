// ft_rms_norm, ft_rope_store, ft_embed_rows: work per token row.
#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "pool.h"
#include "workspace.h"

namespace ft {
namespace {

constexpr int64_t kUnitTokens = 4;

struct NormJob {
  const ft_rms_norm_args* args;
  const KernelTable* table;
  Phase rows;
};

void norm_token(NormJob& job, int64_t t) {
  const ft_rms_norm_args& a = *job.args;
  const float* x = a.x + t * a.x_stride;
  if (a.residual) {
    float* residual = a.residual + t * a.residual_stride;
    job.table->add_row(x, residual, a.cols);
    x = residual;
  }
  job.table->norm_row(x, a.weight, a.out + t * a.out_stride, a.cols, a.eps,
                      (a.flags & FT_ADD_ONE) != 0);
}

struct RopeJob {
  const ft_rope_store_args* args;
  const KernelTable* table;
  float* scratch;  // [threads][head_dim]
  Phase rows;
};

void rope_head(RopeJob& job, float* head, const float* norm, int64_t position) {
  const ft_rope_store_args& a = *job.args;
  if (norm) job.table->norm_row(head, norm, head, a.head_dim, a.eps, (a.flags & FT_ADD_ONE) != 0);
  const int64_t half = a.rotary_dim / 2;
  if (half > 0)
    job.table->rope(head, a.cos + position * half, a.sin + position * half, half,
                    (a.flags & FT_INTERLEAVED) != 0);
}

void store_head(RopeJob& job, void* pool_base, uint16_t* scales, const float* head, int64_t slot,
                int64_t g) {
  const ft_rope_store_args& a = *job.args;
  const int64_t page = slot / kPageTokens, offset = slot % kPageTokens;
  const int64_t at = ((page * a.kv_heads + g) * kPageTokens + offset) * a.head_dim;
  if (a.pool_format == FT_BF16) {
    job.table->to_bf16(head, static_cast<uint16_t*>(pool_base) + at, a.head_dim);
  } else if (a.pool_format == FT_Q8_0) {
    job.table->to_q8(head, static_cast<int8_t*>(pool_base) + at, scales + at / kKvGroup,
                     a.head_dim);
  } else {
    std::memcpy(static_cast<float*>(pool_base) + at, head, 4 * static_cast<size_t>(a.head_dim));
  }
}

void rope_token(RopeJob& job, int64_t t, int worker) {
  const ft_rope_store_args& a = *job.args;
  const int64_t position = a.positions[t], slot = a.slots[t];
  for (int64_t h = 0; h < a.heads; ++h)
    rope_head(job, a.q + t * a.stride + h * a.head_dim, a.q_norm, position);
  if (slot < 0) return;
  float* head = job.scratch + worker * round_up(a.head_dim, 16);
  for (int64_t g = 0; g < a.kv_heads; ++g) {
    const int64_t at = t * a.stride + g * a.head_dim;
    std::memcpy(head, a.k + at, 4 * static_cast<size_t>(a.head_dim));
    rope_head(job, head, a.k_norm, position);
    store_head(job, a.k_pool, a.k_scales, head, slot, g);
    store_head(job, a.v_pool, a.v_scales, a.v + at, slot, g);
  }
}

ft_status check_rope(const ft_rope_store_args& a) {
  if (a.tokens < 0 || a.heads < 0 || a.kv_heads < 0 || a.head_dim <= 0 || a.rotary_dim < 0 ||
      a.rotary_dim > a.head_dim || a.rotary_dim % 2 != 0)
    return FT_ERR_ARGUMENT;
  if (!is_pool_format(a.pool_format, a.head_dim)) return FT_ERR_FORMAT;
  if (a.tokens == 0) return FT_OK;
  if (!a.positions || !a.slots || (a.heads > 0 && !a.q)) return FT_ERR_ARGUMENT;
  if (a.kv_heads > 0 && (!a.k || !a.v || !a.k_pool || !a.v_pool)) return FT_ERR_ARGUMENT;
  if (a.pool_format == FT_Q8_0 && a.kv_heads > 0 && (!a.k_scales || !a.v_scales))
    return FT_ERR_ARGUMENT;
  if (a.rotary_dim > 0 && (!a.cos || !a.sin)) return FT_ERR_ARGUMENT;
  for (int64_t t = 0; t < a.tokens; ++t) {
    if (a.slots[t] < -1 || a.slots[t] >= a.num_pages * kPageTokens) return FT_ERR_INDEX;
    if (a.rotary_dim > 0 && (a.positions[t] < 0 || a.positions[t] >= a.max_positions))
      return FT_ERR_INDEX;
  }
  return FT_OK;
}

// Row-major blocks as in GGUF files; the same arithmetic as ftengine/quant, bit for bit.
float half_value(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31, fraction = h & 1023;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(fraction) * 5.9604644775390625e-08f;
    return sign ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  const uint32_t bits = sign | (wide << 23) | (fraction << 13);
  std::memcpy(&value, &bits, 4);
  return value;
}

void embed_q8_0(const uint8_t* p, int64_t cols, float* out) {
  for (int64_t k = 0; k < cols; k += 32, p += 34) {
    const float d = half_value(p);
    for (int i = 0; i < 32; ++i) out[k + i] = static_cast<float>(static_cast<int8_t>(p[2 + i])) * d;
  }
}

void embed_q4_0(const uint8_t* p, int64_t cols, float* out) {
  for (int64_t k = 0; k < cols; k += 32, p += 18) {
    const float d = half_value(p);
    for (int i = 0; i < 16; ++i) {
      out[k + i] = static_cast<float>((p[2 + i] & 15) - 8) * d;
      out[k + 16 + i] = static_cast<float>((p[2 + i] >> 4) - 8) * d;
    }
  }
}

void embed_q4_1(const uint8_t* p, int64_t cols, float* out) {
  for (int64_t k = 0; k < cols; k += 32, p += 20) {
    const float d = half_value(p), m = half_value(p + 2);
    for (int i = 0; i < 16; ++i) {
      out[k + i] = d * static_cast<float>(p[4 + i] & 15) + m;
      out[k + 16 + i] = d * static_cast<float>(p[4 + i] >> 4) + m;
    }
  }
}

// q4_k and q5_k; `high` is where the fifth bits of a block stand, 0: it has none.
void embed_affine_k(const uint8_t* p, int64_t block_bytes, int64_t high, int64_t cols, float* out) {
  for (int64_t k = 0; k < cols; k += 256, p += block_bytes) {
    const float d = half_value(p), least = half_value(p + 2);
    const uint8_t *six = p + 4, *codes = p + block_bytes - 128;
    for (int g = 0; g < 8; ++g) {
      const int low = g % 4, shift = g % 2 * 4;
      const int scale = g < 4 ? six[low] & 63 : (six[8 + low] & 15) | (six[low] >> 6 << 4);
      const int minimum =
          g < 4 ? six[4 + low] & 63 : (six[8 + low] >> 4) | (six[4 + low] >> 6 << 4);
      const float factor = d * static_cast<float>(scale);
      const float offset = least * static_cast<float>(minimum);
      for (int i = 0; i < 32; ++i) {
        int code = codes[g / 2 * 32 + i] >> shift & 15;
        if (high != 0) code |= (p[high + i] >> g & 1) << 4;
        out[k + g * 32 + i] = factor * static_cast<float>(code) - offset;
      }
    }
  }
}

void embed_q6_k(const uint8_t* p, int64_t cols, float* out) {
  for (int64_t k = 0; k < cols; k += 256, p += 210) {
    const float d = half_value(p + 208);
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128, quarter = i / 32 % 4;
      const int four = p[half * 64 + i % 64] >> (quarter / 2 * 4) & 15;
      const int two = p[128 + half * 32 + i % 32] >> (2 * quarter) & 3;
      const float factor = d * static_cast<float>(static_cast<int8_t>(p[192 + i / 16]));
      out[k + i] = static_cast<float>((four | two << 4) - 32) * factor;
    }
  }
}

void embed_row(int format, const uint8_t* p, int64_t cols, float* out) {
  switch (format) {
    case kF32:
      std::memcpy(out, p, 4 * static_cast<size_t>(cols));
      break;
    case kF16:
      for (int64_t k = 0; k < cols; ++k) out[k] = half_value(p + 2 * k);
      break;
    case kBf16:
      for (int64_t k = 0; k < cols; ++k) {
        uint16_t upper;
        std::memcpy(&upper, p + 2 * k, 2);
        const uint32_t bits = static_cast<uint32_t>(upper) << 16;
        std::memcpy(out + k, &bits, 4);
      }
      break;
    case kQ8_0:
      embed_q8_0(p, cols, out);
      break;
    case kQ4_0:
      embed_q4_0(p, cols, out);
      break;
    case kQ4_1:
      embed_q4_1(p, cols, out);
      break;
    case kQ4K:
      embed_affine_k(p, 144, 0, cols, out);
      break;
    case kQ5K:
      embed_affine_k(p, 176, 16, cols, out);
      break;
    default:
      embed_q6_k(p, cols, out);
  }
}

struct EmbedJob {
  const ft_embed_rows_args* args;
  int format;
  int64_t row_bytes;
  Phase rows;
};

template <class Body>
void each_token(Phase& phase, int64_t tokens, Body body) {
  phase.run((tokens + kUnitTokens - 1) / kUnitTokens, [&](int64_t unit) {
    const int64_t end = std::min(tokens, (unit + 1) * kUnitTokens);
    for (int64_t t = unit * kUnitTokens; t < end; ++t) body(t);
  });
}

}  // namespace
}  // namespace ft

extern "C" ft_status ft_rms_norm(const ft_rms_norm_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_rms_norm_args)) return FT_ERR_SIZE;
  if (args->tokens < 0 || args->cols <= 0) return FT_ERR_ARGUMENT;
  if (args->tokens == 0) return FT_OK;
  if (!args->x || !args->weight || !args->out) return FT_ERR_ARGUMENT;
  std::lock_guard<std::mutex> lock(api_mutex());
  NormJob job{};
  job.args = args;
  job.table = &kernels();
  pool().run(
      [](void* context, int) {
        auto& j = *static_cast<NormJob*>(context);
        each_token(j.rows, j.args->tokens, [&](int64_t t) { norm_token(j, t); });
      },
      &job, args->tokens * args->cols >= kParallelWork / 2);
  return FT_OK;
}

extern "C" ft_status ft_rope_store(const ft_rope_store_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_rope_store_args)) return FT_ERR_SIZE;
  const ft_status status = check_rope(*args);
  if (status != FT_OK || args->tokens == 0) return status;
  std::lock_guard<std::mutex> lock(api_mutex());
  RopeJob job{};
  job.args = args;
  job.table = &kernels();
  job.scratch = static_cast<float*>(workspace(4 * pool().threads() * round_up(args->head_dim, 16)));
  if (!job.scratch) return FT_ERR_MEMORY;
  const int64_t values = args->tokens * (args->heads + 2 * args->kv_heads) * args->head_dim;
  pool().run(
      [](void* context, int worker) {
        auto& j = *static_cast<RopeJob*>(context);
        each_token(j.rows, j.args->tokens, [&](int64_t t) { rope_token(j, t, worker); });
      },
      &job, values >= kParallelWork / 2);
  return FT_OK;
}

extern "C" ft_status ft_embed_rows(const ft_embed_rows_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_embed_rows_args)) return FT_ERR_SIZE;
  EmbedJob job{};
  job.args = args;
  job.format = format_index(args->format);
  if (!is_table_format(job.format)) return FT_ERR_FORMAT;
  const int64_t block = job.format >= kQ8_0 ? group_elements(job.format) : 1;
  if (args->count < 0 || args->cols <= 0 || args->cols % block != 0) return FT_ERR_ARGUMENT;
  if (args->count == 0) return FT_OK;
  if (!args->table || !args->ids || !args->out) return FT_ERR_ARGUMENT;
  for (int64_t i = 0; i < args->count; ++i)
    if (args->ids[i] < 0 || args->ids[i] >= args->rows) return FT_ERR_INDEX;
  job.row_bytes = row_bytes(job.format, args->cols);
  std::lock_guard<std::mutex> lock(api_mutex());
  pool().run(
      [](void* context, int) {
        auto& j = *static_cast<EmbedJob*>(context);
        const ft_embed_rows_args& a = *j.args;
        each_token(j.rows, a.count, [&](int64_t i) {
          embed_row(j.format, static_cast<const uint8_t*>(a.table) + a.ids[i] * j.row_bytes, a.cols,
                    a.out + i * a.out_stride);
        });
      },
      &job, args->count * args->cols >= kParallelWork / 2);
  return FT_OK;
}

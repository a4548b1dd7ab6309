// ft_gated_delta, ft_short_conv: mixers that keep a state for each sequence, between their two
// projections. Work is cut by channels and by heads; each goes through all spans of the step in
// order, so spans of one sequence follow each other and nobody waits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "dispatch.h"
#include "pool.h"
#include "workspace.h"

namespace ft {
namespace {

constexpr int64_t kUnitChannels = 256;
constexpr int64_t kMaxTaps = 16;
constexpr int64_t kMaxHeadDim = 512;

// A short convolution over x, `channels` wide, with its state [taps - 1, channels].
struct Conv {
  const KernelTable* table;
  const ft_spans* spans;
  const float* x;
  int64_t x_stride;
  int64_t channels;
  int64_t taps;
  const float* weight;
  const float* bias;
  float* states;  // of slot 0
  float* out;
  int64_t out_stride;
  bool silu;
};

// Row `index` of a span's inputs, the state's rows in front.
const float* seen_row(const Conv& c, const float* state, int64_t first, int64_t index) {
  const int64_t kept = c.taps - 1;
  return index < kept ? state + index * c.channels : c.x + (first + index - kept) * c.x_stride;
}

void convolve_span(const Conv& c, int64_t span, int64_t begin, int64_t count) {
  const int64_t first = c.spans->start[span], end = c.spans->start[span + 1];
  float* state = c.states + c.spans->slot[span] * c.spans->slot_stride;
  const float* rows[kMaxTaps];
  ConvRun run{rows, c.weight + begin, c.channels, c.taps, c.bias ? c.bias + begin : nullptr,
              nullptr, count, c.silu};
  for (int64_t t = 0; t < end - first; ++t) {
    for (int64_t tap = 0; tap < c.taps; ++tap) rows[tap] = seen_row(c, state, first, t + tap) + begin;
    run.out = c.out + (first + t) * c.out_stride + begin;
    c.table->conv_row(&run);
  }
  const size_t bytes = 4 * static_cast<size_t>(count);
  for (int64_t row = 0; row < c.taps - 1; ++row)  // what is read lies behind what is written
    std::memmove(state + row * c.channels + begin,
                 seen_row(c, state, first, end - first + row) + begin, bytes);
  if (c.spans->keep[span] < 0) return;
  float* kept = c.states + c.spans->keep[span] * c.spans->slot_stride;
  for (int64_t row = 0; row < c.taps - 1; ++row)
    std::memcpy(kept + row * c.channels + begin, state + row * c.channels + begin, bytes);
}

void convolve_unit(const Conv& c, int64_t tokens, int64_t unit) {
  const int64_t begin = unit * kUnitChannels;
  const int64_t count = std::min(kUnitChannels, c.channels - begin);
  for (int64_t span = 0; c.spans->start[span] < tokens; ++span)
    convolve_span(c, span, begin, count);
}

int64_t conv_units(const Conv& c) { return (c.channels + kUnitChannels - 1) / kUnitChannels; }

struct DeltaJob {
  const ft_gated_delta_args* args;
  const KernelTable* table;
  Conv conv;
  Phase channels, heads;
};

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// One token of one value head.
void delta_token(const DeltaJob& job, int64_t head, int64_t t, float* state) {
  const ft_gated_delta_args& a = *job.args;
  const int64_t key_width = a.key_heads * a.key_dim, value_width = a.value_heads * a.value_dim;
  const float* row = job.conv.out + t * job.conv.out_stride;
  const int64_t key = head / (a.value_heads / a.key_heads) * a.key_dim;
  float q[kMaxHeadDim], k[kMaxHeadDim], found[kMaxHeadDim];
  job.table->norm_row(row + key, a.q_weight, q, a.key_dim, a.qk_eps, false);
  job.table->norm_row(row + key_width + key, a.k_weight, k, a.key_dim, a.qk_eps, false);
  const float* rest = a.x + t * a.x_stride + 2 * key_width + value_width;
  const float* z = rest + head * a.value_dim;
  const double b = rest[value_width + head], step = rest[value_width + a.value_heads + head];
  DeltaRun run{};
  run.state = state;
  run.key_dim = a.key_dim;
  run.value_dim = a.value_dim;
  run.q = q;
  run.k = k;
  run.v = row + 2 * key_width + head * a.value_dim;
  run.decay =
      static_cast<float>(std::exp(-a.decay_rate[head] * softplus(step + a.dt_bias[head])));
  run.beta = static_cast<float>(1.0 / (1.0 + std::exp(-b)));
  run.out = found;
  job.table->delta_step(&run);
  job.table->norm_row(found, a.norm_weight, found, a.value_dim, a.norm_eps, false);
  job.table->silu_times(z, found, a.out + t * a.out_stride + head * a.value_dim, a.value_dim);
}

void delta_head(const DeltaJob& job, int64_t head) {
  const ft_gated_delta_args& a = *job.args;
  const int64_t size = a.key_dim * a.value_dim;
  for (int64_t span = 0; a.spans.start[span] < a.tokens; ++span) {
    float* state = a.states + a.spans.slot[span] * a.spans.slot_stride + head * size;
    for (int64_t t = a.spans.start[span]; t < a.spans.start[span + 1]; ++t)
      delta_token(job, head, t, state);
    if (a.spans.keep[span] >= 0)
      std::memcpy(a.states + a.spans.keep[span] * a.spans.slot_stride + head * size, state,
                  4 * static_cast<size_t>(size));
  }
}

void delta_job(void* context, int) {
  DeltaJob& job = *static_cast<DeltaJob*>(context);
  job.channels.run(conv_units(job.conv),
                   [&](int64_t u) { convolve_unit(job.conv, job.args->tokens, u); });
  job.heads.run(job.args->value_heads, [&](int64_t head) { delta_head(job, head); });
}

struct ShortConvJob {
  const ft_short_conv_args* args;
  const KernelTable* table;
  Conv conv;
  float* gated;
  Phase rows, channels, last;
};

void gate_in(ShortConvJob& job, int64_t t) {
  const ft_short_conv_args& a = *job.args;
  const float* x = a.x + t * a.x_stride;
  job.table->multiply_rows(x, x + 2 * a.width, job.gated + t * a.width, a.width);
}

void gate_out(ShortConvJob& job, int64_t t) {
  const ft_short_conv_args& a = *job.args;
  float* out = a.out + t * a.out_stride;
  job.table->multiply_rows(a.x + t * a.x_stride + a.width, out, out, a.width);
}

void short_conv_job(void* context, int) {
  ShortConvJob& job = *static_cast<ShortConvJob*>(context);
  const int64_t tokens = job.args->tokens;
  job.rows.run(tokens, [&](int64_t t) { gate_in(job, t); });
  job.channels.run(conv_units(job.conv), [&](int64_t u) { convolve_unit(job.conv, tokens, u); });
  job.last.run(tokens, [&](int64_t t) { gate_out(job, t); });
}

ft_status check_spans(const ft_spans& s, int64_t tokens) {
  if (!s.start || !s.slot || !s.keep || s.slot_stride < 0 || s.num_slots <= 0)
    return FT_ERR_ARGUMENT;
  int64_t at = 0;
  for (int64_t i = 0; at < tokens; ++i) {
    if (s.start[i] != at || s.start[i + 1] <= at || s.start[i + 1] > tokens) return FT_ERR_INDEX;
    if (s.slot[i] < 0 || s.slot[i] >= s.num_slots || s.keep[i] < -1 || s.keep[i] >= s.num_slots)
      return FT_ERR_INDEX;
    at = s.start[i + 1];
  }
  return FT_OK;
}

ft_status check_delta(const ft_gated_delta_args& a) {
  if (a.tokens < 0 || a.key_heads <= 0 || a.value_heads <= 0 || a.key_dim <= 0 ||
      a.value_dim <= 0 || a.value_heads % a.key_heads != 0 || a.taps < 1 || a.taps > kMaxTaps ||
      a.key_dim > kMaxHeadDim || a.value_dim > kMaxHeadDim)
    return FT_ERR_ARGUMENT;
  if (a.tokens == 0) return FT_OK;
  if (!a.x || !a.conv || !a.decay_rate || !a.dt_bias || !a.q_weight || !a.k_weight ||
      !a.norm_weight || !a.conv_states || !a.states || !a.out)
    return FT_ERR_ARGUMENT;
  return check_spans(a.spans, a.tokens);
}

}  // namespace
}  // namespace ft

extern "C" ft_status ft_gated_delta(const ft_gated_delta_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_gated_delta_args)) return FT_ERR_SIZE;
  const ft_status status = check_delta(*args);
  if (status != FT_OK || args->tokens == 0) return status;
  std::lock_guard<std::mutex> lock(api_mutex());
  const int64_t channels =
      2 * args->key_heads * args->key_dim + args->value_heads * args->value_dim;
  auto* mixed = static_cast<float*>(workspace(4 * args->tokens * channels));
  if (!mixed) return FT_ERR_MEMORY;
  DeltaJob job{};
  job.args = args;
  job.table = &kernels();
  job.conv = Conv{job.table,  &args->spans,      args->x, args->x_stride, channels, args->taps,
                  args->conv, nullptr, args->conv_states, mixed,          channels, true};
  const int64_t work = args->tokens * args->value_heads * args->value_dim * args->key_dim;
  pool().run(delta_job, &job, work >= kParallelWork);
  return FT_OK;
}

extern "C" ft_status ft_short_conv(const ft_short_conv_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_short_conv_args)) return FT_ERR_SIZE;
  const ft_short_conv_args& a = *args;
  if (a.tokens < 0 || a.width <= 0 || a.taps < 1 || a.taps > kMaxTaps) return FT_ERR_ARGUMENT;
  if (a.tokens == 0) return FT_OK;
  if (!a.x || !a.conv || !a.states || !a.out) return FT_ERR_ARGUMENT;
  if (const ft_status status = check_spans(a.spans, a.tokens); status != FT_OK) return status;
  std::lock_guard<std::mutex> lock(api_mutex());
  ShortConvJob job{};
  job.args = args;
  job.table = &kernels();
  job.gated = static_cast<float*>(workspace(4 * a.tokens * a.width));
  if (!job.gated) return FT_ERR_MEMORY;
  job.conv = Conv{job.table, &a.spans, job.gated, a.width, a.width,      a.taps,
                  a.conv,    a.bias,   a.states,  a.out,   a.out_stride, false};
  pool().run(short_conv_job, &job, a.tokens * a.width * a.taps >= kParallelWork);
  return FT_OK;
}

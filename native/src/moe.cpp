// ft_expert_ffn: one routed layer. Pairs (token, slot) are grouped by expert, so every expert's
// weights are read once; then gate_up with the activation per (expert, panels), and down. Few pairs:
// down per (expert, panels) too, then a phase that sums the slots of a token; each thread reads one
// stream. Many pairs: down per panels over all experts, sums included, so that results stay small.
// Slots are summed in routing order both ways.
#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "pool.h"

namespace ft {
namespace {

constexpr int64_t kUnitBytes = 96 * 1024;
constexpr int64_t kCallerPackTokens = 4;
constexpr int64_t kWholePartBytes = 4 << 20;  // results of all pairs up to this size are kept
constexpr int64_t kUnitResultBytes = 4 << 20;  // of a thread, where they are not
constexpr int64_t kSumColumns = 512;
constexpr int64_t kFetchBytes = 8192;  // of weights whose place the hardware cannot guess

// Scratch in order; offsets in bytes, each 64-byte aligned.
struct ScratchPlan {
  int64_t starts;  // int32 [experts + 1]: first place of each expert in `order`
  int64_t cursor;  // int32 [experts]
  int64_t active;  // int32 [experts]: experts with work
  int64_t order;   // int32 [pairs]: pairs sorted by expert, then by pair
  int64_t packed;  // float [tokens][packed_stride], formats that permute
  int64_t h;       // float [pairs][h_stride], in order's order
  int64_t parts;   // float [threads or 1][pairs][part_floats]
  int64_t total;
  int64_t packed_stride, h_stride, down_panels_per_unit, part_floats;
  bool by_expert;  // down is cut by experts, parts are whole rows
};

struct MoeJob {
  const ft_expert_ffn_args* args;
  const KernelTable* table;
  int format_gate_up, format_down;
  Way way_gate_up, way_down;
  ScratchPlan plan;
  const int32_t* starts;
  const int32_t* active;
  const int32_t* order;
  float* packed;
  float* h;
  float* parts;
  int64_t num_active;
  int64_t gate_panels, gate_panels_per_unit, gate_groups;
  int64_t down_panels, down_groups;
  bool pack_in_job;
  bool fetches;  // experts meet so many tokens that it pays to fetch what comes next
  bool pack_h_whole;  // h stays as it is until a row is complete
  int threads;
  GluSpec glu;
  Phase pack, pack_h, down, sum;
  StreamPhase gate_up, down_stream;
};

int64_t h_row_floats(int format_down, int64_t inter) {
  const int64_t padded = round_up(inter, kPairRows);
  return is_packed(format_down) ? packed_row_floats(inter) : round_up(padded, 16) + 16;
}

ScratchPlan plan_scratch(const ft_expert_ffn_args& a, int format_gate_up, int format_down,
                         int threads) {
  ScratchPlan plan{};
  const int64_t pairs = a.tokens * a.slots;
  int64_t at = 0;
  auto take = [&](int64_t bytes) {
    const int64_t here = at;
    at = round_up(at + bytes, 64);
    return here;
  };
  plan.starts = take(4 * (a.num_experts + 1));
  plan.cursor = take(4 * a.num_experts);
  plan.active = take(4 * a.num_experts);
  plan.order = take(4 * pairs);
  plan.packed_stride = is_packed(format_gate_up) ? packed_row_floats(a.hidden) : 0;
  plan.packed = take(4 * a.tokens * plan.packed_stride);
  plan.h_stride = h_row_floats(format_down, a.inter);
  plan.h = take(4 * pairs * plan.h_stride);
  const int64_t down_panels = (a.hidden + kPanelRows - 1) / kPanelRows;
  plan.by_expert = pairs * down_panels * kPanelRows * 4 <= kWholePartBytes;
  if (plan.by_expert) {
    plan.down_panels_per_unit =
        std::max<int64_t>(1, std::min({kUnitBytes / std::max<int64_t>(1, panel_bytes(format_down, a.inter)),
                                       down_panels * std::min(pairs, a.num_experts) / (threads * 8)}));
    plan.part_floats = down_panels * kPanelRows;
    plan.parts = take(4 * pairs * plan.part_floats);
    plan.total = at;
    return plan;
  }
  const int64_t by_size = kUnitResultBytes / (pairs * kPanelRows * 4);
  const int64_t by_share = down_panels / (threads * 4);
  plan.down_panels_per_unit = std::max<int64_t>(1, std::min({by_size, by_share, int64_t{8}}));
  plan.part_floats = plan.down_panels_per_unit * kPanelRows;
  plan.parts = take(4 * threads * pairs * plan.part_floats);
  plan.total = at;
  return plan;
}

const uint8_t* expert_row(const ft_expert_ffn_args& a, int64_t e) {
  return static_cast<const uint8_t*>(
      a.rows ? a.rows[e] : static_cast<const uint8_t*>(a.bank) + e * a.row_bytes);
}

void pack_token(MoeJob& job, int64_t t) {
  const ft_expert_ffn_args& a = *job.args;
  job.way_gate_up.pack(a.x + t * a.x_stride, a.hidden, job.packed + t * job.plan.packed_stride);
}

constexpr int64_t kPackRows = 4;

void pack_h_unit(MoeJob& job, int64_t unit) {
  const int64_t pairs = job.args->tokens * job.args->slots;
  const int64_t end = std::min(pairs, (unit + 1) * kPackRows);
  for (int64_t i = unit * kPackRows; i < end; ++i) {
    float* h = job.h + i * job.plan.h_stride;
    job.way_down.pack(h, job.args->inter, h);
  }
}

// Two panels of 16 activations each are one chunk of the down matrix.
void finish_pair_of_panels(MoeJob& job, int64_t chunk, const float* plain, float* h) {
  const int64_t k = chunk * kChunk;
  if (job.way_down.pack == nullptr || job.pack_h_whole) {
    const int64_t width = round_up(job.args->inter, kPairRows);
    std::memcpy(h + k, plain, 4 * static_cast<size_t>(std::min<int64_t>(kChunk, width - k)));
    return;
  }
  alignas(64) float packed[kChunk + kExtras];
  const int64_t element_bytes = products().packed_element_bytes;
  job.way_down.pack(plain, kChunk, packed);
  std::memcpy(reinterpret_cast<uint8_t*>(h) + element_bytes * k, packed,
              static_cast<size_t>(element_bytes * kChunk));
  std::memcpy(h + job.args->inter + chunk * kExtras, packed + kChunk, 4 * kExtras);
}

// What a worker needs after the expert it is at: it comes from memory while that is computed.
struct Upcoming {
  const uint8_t* weights;  // null: nothing
  int64_t first;           // of `order`
  int64_t tokens;
};

Upcoming upcoming(const MoeJob& job, int64_t index, int64_t offset) {
  if (!job.fetches || index >= job.num_active) return {};
  const int64_t expert = job.active[index], first = job.starts[expert];
  const int64_t tokens = std::min<int64_t>(job.starts[expert + 1] - first, kMaxBlockTokens);
  return {expert_row(*job.args, expert) + offset, first, tokens};
}

void fetch(const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64)
    __builtin_prefetch(static_cast<const uint8_t*>(from) + at, 0, 2);
}

// A packed row and its extras.
void fetch_row(const float* row, int64_t cols) {
  fetch(row, cols * products().packed_element_bytes);
  fetch(row + cols, cols / kChunk * kExtras * 4);
}

// Part `part` of `parts`; row(i): that of place i of `order`.
template <class Row>
void fetch_part(const Upcoming& next, int64_t part, int64_t parts, int64_t cols, Row row) {
  if (part + 1 == parts) fetch(next.weights, kFetchBytes);
  const int64_t end = next.first + next.tokens * (part + 1) / parts;
  for (int64_t i = next.first + next.tokens * part / parts; i < end; ++i) fetch_row(row(i), cols);
}

void gate_up_block(MoeJob& job, const uint8_t* weights, int64_t first, int tokens, int64_t begin,
                   int64_t end) {
  const ft_expert_ffn_args& a = *job.args;
  alignas(64) float y[kMaxBlockTokens * kPanelRows];
  alignas(64) float h[kMaxBlockTokens * kChunk];
  const float* x[kMaxBlockTokens];
  for (int t = 0; t < tokens; ++t) {
    const int64_t token = job.order[first + t] / a.slots;
    x[t] = job.packed ? job.packed + token * job.plan.packed_stride : a.x + token * a.x_stride;
  }
  const int64_t bytes = panel_bytes(job.format_gate_up, a.hidden);
  PanelRun run{nullptr, a.hidden, x, a.hidden, tokens, prefetch_bytes(), y};
  for (int64_t p = begin; p < end; ++p) {
    run.panel = weights + p * bytes;
    job.way_gate_up.panel(&run);
    for (int t = 0; t < tokens; ++t)
      job.table->glu(y + t * kPanelRows, &job.glu, h + t * kChunk + (p % 2) * kPairRows);
    if (p % 2 == 0 && p + 1 < job.gate_panels) continue;
    if (p % 2 == 0)  // the last chunk has one panel only
      for (int t = 0; t < tokens; ++t)
        std::memset(h + t * kChunk + kPairRows, 0, 4 * (kChunk - kPairRows));
    for (int t = 0; t < tokens; ++t)
      finish_pair_of_panels(job, p / 2, h + t * kChunk, job.h + (first + t) * job.plan.h_stride);
  }
}

void gate_up_unit(MoeJob& job, int64_t unit) {
  const int64_t expert = job.active[unit / job.gate_groups], group = unit % job.gate_groups;
  const uint8_t* weights = expert_row(*job.args, expert) + job.args->gate_up_offset;
  const int64_t begin = group * job.gate_panels_per_unit;
  const int64_t end = std::min(job.gate_panels, begin + job.gate_panels_per_unit);
  const Upcoming next = upcoming(job, unit / job.gate_groups + 1, job.args->gate_up_offset);
  if (next.weights && job.packed)
    fetch_part(next, group, job.gate_groups, job.args->hidden, [&](int64_t i) {
      return job.packed + job.order[i] / job.args->slots * job.plan.packed_stride;
    });
  for (int64_t i = job.starts[expert]; i < job.starts[expert + 1]; i += kMaxBlockTokens) {
    const int64_t left = job.starts[expert + 1] - i;
    gate_up_block(job, weights, i, static_cast<int>(std::min<int64_t>(left, kMaxBlockTokens)),
                  begin, end);
  }
}

void down_block(MoeJob& job, const uint8_t* weights, int64_t first, int tokens, int64_t begin,
                int64_t end, float* parts, const Upcoming& next = {}) {
  const ft_expert_ffn_args& a = *job.args;
  alignas(64) float y[kMaxBlockTokens * kPanelRows];
  const float* x[kMaxBlockTokens];
  for (int t = 0; t < tokens; ++t) x[t] = job.h + (first + t) * job.plan.h_stride;
  const int64_t bytes = panel_bytes(job.format_down, a.inter);
  PanelRun run{nullptr, a.inter, x, a.inter, tokens, prefetch_bytes(), y};
  float* to[kMaxBlockTokens];
  for (int t = 0; t < tokens; ++t) to[t] = parts + job.order[first + t] * job.plan.part_floats;
  for (int64_t p = begin; p < end; ++p) {
    run.panel = weights + p * bytes;
    if (next.weights && job.way_down.pack)
      fetch_part(next, p - begin, end - begin, a.inter,
                 [&](int64_t i) { return job.h + i * job.plan.h_stride; });
    for (int t = 0; job.fetches && t < tokens; ++t) {
      __builtin_prefetch(to[t], 1);
      __builtin_prefetch(to[t] + kPanelRows / 2, 1);
    }
    job.way_down.panel(&run);
    for (int t = 0; t < tokens; ++t) {
      std::memcpy(to[t], y + t * kPanelRows, 4 * kPanelRows);
      to[t] += kPanelRows;
    }
  }
}

void down_unit(MoeJob& job, int64_t unit, int worker) {
  const ft_expert_ffn_args& a = *job.args;
  const int64_t begin = unit * job.plan.down_panels_per_unit;
  const int64_t end = std::min(job.down_panels, begin + job.plan.down_panels_per_unit);
  float* parts = job.parts + worker * a.tokens * a.slots * job.plan.part_floats;
  for (int64_t i = 0; i < job.num_active; ++i) {
    const int64_t expert = job.active[i];
    const uint8_t* weights = expert_row(a, expert) + a.down_offset;
    const Upcoming next =
        upcoming(job, i + 1, a.down_offset + begin * panel_bytes(job.format_down, a.inter));
    for (int64_t at = job.starts[expert]; at < job.starts[expert + 1]; at += kMaxBlockTokens) {
      const int64_t left = job.starts[expert + 1] - at;
      down_block(job, weights, at, static_cast<int>(std::min<int64_t>(left, kMaxBlockTokens)),
                 begin, end, parts, left <= kMaxBlockTokens ? next : Upcoming{});
    }
  }
  const int64_t row = begin * kPanelRows;
  const int rows = static_cast<int>(std::min(a.hidden, end * kPanelRows) - row);
  for (int64_t t = 0; t < a.tokens; ++t)
    job.table->weighted_sum(parts + t * a.slots * job.plan.part_floats, job.plan.part_floats,
                            a.expert_weights + t * a.slots, a.slots, a.out + t * a.out_stride + row,
                            rows, (a.flags & FT_ACCUMULATE) != 0);
}

void down_stream_unit(MoeJob& job, int64_t unit) {
  const int64_t expert = job.active[unit / job.down_groups], group = unit % job.down_groups;
  const uint8_t* weights = expert_row(*job.args, expert) + job.args->down_offset;
  const int64_t begin = group * job.plan.down_panels_per_unit;
  const int64_t end = std::min(job.down_panels, begin + job.plan.down_panels_per_unit);
  for (int64_t at = job.starts[expert]; at < job.starts[expert + 1]; at += kMaxBlockTokens) {
    const int64_t left = job.starts[expert + 1] - at;
    down_block(job, weights, at, static_cast<int>(std::min<int64_t>(left, kMaxBlockTokens)), begin,
               end, job.parts + begin * kPanelRows);
  }
}

void sum_unit(MoeJob& job, int64_t unit) {
  const ft_expert_ffn_args& a = *job.args;
  const int64_t groups = (a.hidden + kSumColumns - 1) / kSumColumns;
  const int64_t t = unit / groups, column = unit % groups * kSumColumns;
  job.table->weighted_sum(job.parts + t * a.slots * job.plan.part_floats + column,
                          job.plan.part_floats, a.expert_weights + t * a.slots, a.slots,
                          a.out + t * a.out_stride + column,
                          static_cast<int>(std::min(kSumColumns, a.hidden - column)),
                          (a.flags & FT_ACCUMULATE) != 0);
}

void moe_job(void* context, int worker) {
  MoeJob& job = *static_cast<MoeJob*>(context);
  if (job.pack_in_job) job.pack.run(job.args->tokens, [&](int64_t t) { pack_token(job, t); });
  job.gate_up.run(job.num_active * job.gate_groups, worker, job.threads,
                  [&](int64_t u) { gate_up_unit(job, u); });
  if (job.pack_h_whole) {
    const int64_t pairs = job.args->tokens * job.args->slots;
    job.pack_h.run((pairs + kPackRows - 1) / kPackRows, [&](int64_t u) { pack_h_unit(job, u); });
  }
  if (job.plan.by_expert) {
    job.down_stream.run(job.num_active * job.down_groups, worker, job.threads,
                        [&](int64_t u) { down_stream_unit(job, u); });
    const int64_t groups = (job.args->hidden + kSumColumns - 1) / kSumColumns;
    job.sum.run(job.args->tokens * groups, [&](int64_t u) { sum_unit(job, u); });
    return;
  }
  job.down.run(job.down_groups, [&](int64_t u) { down_unit(job, u, worker); });
}

// Counting sort of the pairs by expert. False: an id is out of range.
bool group_pairs(MoeJob& job, uint8_t* scratch) {
  const ft_expert_ffn_args& a = *job.args;
  const int64_t pairs = a.tokens * a.slots;
  auto* starts = reinterpret_cast<int32_t*>(scratch + job.plan.starts);
  auto* cursor = reinterpret_cast<int32_t*>(scratch + job.plan.cursor);
  auto* active = reinterpret_cast<int32_t*>(scratch + job.plan.active);
  auto* order = reinterpret_cast<int32_t*>(scratch + job.plan.order);
  std::memset(starts, 0, 4 * static_cast<size_t>(a.num_experts + 1));
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t e = a.expert_ids[i];
    if (e < 0 || e >= a.num_experts) return false;
    ++starts[e + 1];
  }
  for (int64_t e = 0; e < a.num_experts; ++e) {
    if (starts[e + 1] > 0) active[job.num_active++] = static_cast<int32_t>(e);
    starts[e + 1] += starts[e];
    cursor[e] = starts[e];
  }
  for (int64_t i = 0; i < pairs; ++i) order[cursor[a.expert_ids[i]]++] = static_cast<int32_t>(i);
  job.starts = starts;
  job.active = active;
  job.order = order;
  return true;
}

ft_status check_shape(const ft_expert_ffn_args& a, int format_gate_up, int format_down) {
  if (format_gate_up < 0 || format_down < 0) return FT_ERR_FORMAT;
  if (a.tokens < 0 || a.slots <= 0 || a.num_experts <= 0 || a.hidden <= 0 || a.inter <= 0)
    return FT_ERR_ARGUMENT;
  if (a.tokens * a.slots > INT32_MAX || a.num_experts >= INT32_MAX) return FT_ERR_ARGUMENT;
  if (a.hidden % group_elements(format_gate_up) != 0) return FT_ERR_ARGUMENT;
  if (a.inter % group_elements(format_down) != 0) return FT_ERR_ARGUMENT;
  if (a.activation > FT_ACT_SWIGLU_CLAMP) return FT_ERR_ARGUMENT;
  return FT_OK;
}

ft_status check_pointers(const ft_expert_ffn_args& a) {
  if (!a.x || !a.expert_ids || !a.expert_weights || !a.out || !a.scratch) return FT_ERR_ARGUMENT;
  if (!a.rows && !a.bank) return FT_ERR_ARGUMENT;
  if (!aligned64(a.scratch) || a.gate_up_offset % 64 != 0 || a.down_offset % 64 != 0)
    return FT_ERR_ALIGN;
  if (!a.rows && (!aligned64(a.bank) || a.row_bytes % 64 != 0)) return FT_ERR_ALIGN;
  return FT_OK;
}

ft_status check_rows(const MoeJob& job) {
  if (!job.args->rows) return FT_OK;
  for (int64_t i = 0; i < job.num_active; ++i) {
    const void* row = job.args->rows[job.active[i]];
    if (!row) return FT_ERR_ARGUMENT;
    if (!aligned64(row)) return FT_ERR_ALIGN;
  }
  return FT_OK;
}

void cut_work(MoeJob& job, int threads) {
  const ft_expert_ffn_args& a = *job.args;
  job.gate_panels = (a.inter + kPairRows - 1) / kPairRows;
  const int64_t by_size = kUnitBytes / panel_bytes(job.format_gate_up, a.hidden);
  const int64_t by_share = job.gate_panels * job.num_active / (threads * 8);
  job.gate_panels_per_unit = round_up(std::max<int64_t>(2, std::min(by_size, by_share)), 2);
  job.gate_groups = (job.gate_panels + job.gate_panels_per_unit - 1) / job.gate_panels_per_unit;
  job.down_panels = (a.hidden + kPanelRows - 1) / kPanelRows;
  job.down_groups =
      (job.down_panels + job.plan.down_panels_per_unit - 1) / job.plan.down_panels_per_unit;
}

}  // namespace
}  // namespace ft

extern "C" int64_t ft_expert_ffn_scratch(const ft_expert_ffn_args* args) {
  using namespace ft;
  if (!args || args->size != sizeof(ft_expert_ffn_args)) return -1;
  const int gate_up = format_index(args->format_gate_up), down = format_index(args->format_down);
  if (check_shape(*args, gate_up, down) != FT_OK) return -1;
  return plan_scratch(*args, gate_up, down, pool().threads()).total;
}

extern "C" ft_status ft_expert_ffn(const ft_expert_ffn_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_expert_ffn_args)) return FT_ERR_SIZE;
  MoeJob job{};
  job.args = args;
  job.format_gate_up = format_index(args->format_gate_up);
  job.format_down = format_index(args->format_down);
  ft_status status = check_shape(*args, job.format_gate_up, job.format_down);
  if (status != FT_OK || args->tokens == 0) return status;
  if ((status = check_pointers(*args)) != FT_OK) return status;
  std::lock_guard<std::mutex> lock(api_mutex());
  const int threads = job.threads = pool().threads();
  job.table = &kernels();
  job.plan = plan_scratch(*args, job.format_gate_up, job.format_down, threads);
  if (args->scratch_bytes < job.plan.total) return FT_ERR_SCRATCH;
  auto* scratch = static_cast<uint8_t*>(args->scratch);
  if (!group_pairs(job, scratch)) return FT_ERR_EXPERT_ID;
  if ((status = check_rows(job)) != FT_OK) return status;
  job.h = reinterpret_cast<float*>(scratch + job.plan.h);
  job.parts = reinterpret_cast<float*>(scratch + job.plan.parts);
  const int64_t of_expert = args->tokens * args->slots / job.num_active;
  job.fetches = of_expert >= kManyTokens;
  job.way_gate_up = way_for(job.format_gate_up, of_expert);
  job.way_down = way_for(job.format_down, of_expert);
  job.pack_h_whole = (products().packed_by_groups >> job.format_down & 1) != 0;
  job.glu = GluSpec{static_cast<int32_t>(args->activation), args->alpha, args->limit};
  cut_work(job, threads);
  if (job.way_gate_up.pack != nullptr) {
    job.packed = reinterpret_cast<float*>(scratch + job.plan.packed);
    job.pack_in_job = args->tokens > kCallerPackTokens;
    if (!job.pack_in_job)
      for (int64_t t = 0; t < args->tokens; ++t) pack_token(job, t);
  }
  const int64_t work = args->tokens * args->slots * args->hidden * args->inter * 3;
  pool().run(moe_job, &job, work >= kParallelWork);
  return FT_OK;
}

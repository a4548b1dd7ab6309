// ft_attention: work is cut in (sequence, block of queries, KV heads), and where that gives too few
// pieces, in splits of 256 keys too. Partials are always folded in the order of their keys, so both
// ways give the same bits.
//
// A block of few rows, as in decoding, takes time for reading keys and values alone. It has all KV
// heads, which lie side by side in a page, and goes through them split by split, so that memory is
// read in the order in which it lies.
#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "pool.h"
#include "workspace.h"

namespace ft {
namespace {

constexpr int64_t kBlockRows = 64;
constexpr int64_t kStreamedRows = 16;  // up to here waiting for memory counts

struct Unit {
  int32_t sequence;
  int32_t first_head;  // of KV
  int32_t num_heads;
  int32_t first_query;  // within the sequence
  int32_t num_queries;
  int32_t first_split;
  int32_t num_splits;
  int64_t partial;  // index of the unit's first among all partials: [split][head]
};

// A split of a unit's keys for one of its heads.
struct Piece {
  int32_t split;
  int32_t head;  // within the unit
  bool is_cold;  // what it reads was not asked for by the piece one split before
};

struct AttentionJob {
  const ft_attention_args* args;
  const KernelTable* table;
  Unit* units;
  int64_t num_units;
  int64_t num_partials;
  int32_t* unit_of_partial;
  int64_t max_rows, max_heads, padded_dim, state_floats, worker_floats;
  float* worker_scratch;
  float* partials;  // [num_partials][state_floats] where keys are split
  bool split_keys;
  StreamPhase stream;
  Phase run, merge;
};

// Layout of a state: max [max_rows rounded to 16], sum the same, acc [max_rows][padded_dim].
struct State {
  float* max;
  float* sum;
  float* acc;
};

State state_at(const AttentionJob& job, float* base) {
  const int64_t rows = round_up(job.max_rows, 16);
  return State{base, base + rows, base + 2 * rows};
}

void run_piece(const AttentionJob& job, const Unit& unit, const Piece& piece, float* scratch,
               const State& state) {
  const ft_attention_args& a = *job.args;
  const int64_t kv_head = unit.first_head + piece.head;
  const int64_t per_kv = a.heads / a.kv_heads;
  const int64_t queries = a.query_start[unit.sequence + 1] - a.query_start[unit.sequence];
  const int32_t context = a.context_len[unit.sequence];
  auto* q = reinterpret_cast<const float**>(scratch);
  auto* position = reinterpret_cast<int32_t*>(q + job.max_rows);
  const int64_t header = round_up(job.max_rows * 12, 64) / 4;
  int rows = 0;
  for (int32_t i = unit.first_query; i < unit.first_query + unit.num_queries; ++i) {
    const float* token = a.q + (a.query_start[unit.sequence] + i) * a.q_stride;
    for (int64_t h = 0; h < per_kv; ++h, ++rows) {
      q[rows] = token + (kv_head * per_kv + h) * a.head_dim;
      position[rows] = static_cast<int32_t>(context - queries + i);
    }
  }
  const int32_t last = position[rows - 1] + 1;
  AttendRun run{};
  run.q = q;
  run.position = position;
  run.rows = rows;
  run.head_dim = static_cast<int32_t>(a.head_dim);
  run.padded_dim = static_cast<int32_t>(job.padded_dim);
  run.pool_format = format_index(a.pool_format);
  run.k_pool = a.k_pool;
  run.v_pool = a.v_pool;
  run.k_scales = a.k_scales;
  run.v_scales = a.v_scales;
  run.pages = a.page_table + unit.sequence * a.max_pages;
  run.page_stride = a.kv_heads * kPageTokens * a.head_dim;
  run.head_offset = kv_head * kPageTokens * a.head_dim;
  run.first_key = piece.split * kSplitKeys;
  run.end_key = std::min(last, run.first_key + kSplitKeys);
  if (rows <= kStreamedRows) {
    run.is_cold = piece.is_cold;
    run.pages_ahead = std::min((last - run.end_key + kPageTokens - 1) / kPageTokens,
                               kSplitKeys / kPageTokens);
    run.heads_offset = unit.first_head * kPageTokens * a.head_dim;
    run.head = piece.head;
    run.heads = unit.num_heads;
  }
  run.window = static_cast<int32_t>(a.window);
  run.scale = a.scale;
  run.scratch = scratch + header;
  run.max = state.max;
  run.sum = state.sum;
  run.acc = state.acc;
  job.table->attend(&run);
}

int32_t unit_rows(const AttentionJob& job, const Unit& unit) {
  return unit.num_queries * static_cast<int32_t>(job.args->heads / job.args->kv_heads);
}

void finish_head(const AttentionJob& job, const Unit& unit, int32_t kv_head, const State& state) {
  const ft_attention_args& a = *job.args;
  const int64_t per_kv = a.heads / a.kv_heads;
  int64_t row = 0;
  for (int32_t i = 0; i < unit.num_queries; ++i) {
    float* out = a.out + (a.query_start[unit.sequence] + unit.first_query + i) * a.out_stride;
    for (int64_t h = 0; h < per_kv; ++h, ++row) {
      const int64_t head = (unit.first_head + kv_head) * per_kv + h;
      job.table->attend_finish(state.max + row, state.sum + row, state.acc + row * job.padded_dim,
                               a.sinks ? a.sinks + head : nullptr, out + head * a.head_dim,
                               static_cast<int32_t>(a.head_dim));
    }
  }
}

void fold(const AttentionJob& job, const Unit& unit, const State& total, const State& part) {
  job.table->attend_merge(total.max, total.sum, total.acc, part.max, part.sum, part.acc,
                          unit_rows(job, unit), static_cast<int32_t>(job.padded_dim));
}

// Scratch of a worker: rows, kernel scratch, then a state, then one for each head.
void whole_unit(AttentionJob& job, const Unit& unit, int worker) {
  float* scratch = job.worker_scratch + worker * job.worker_floats;
  float* totals = scratch + job.worker_floats - job.max_heads * job.state_floats;
  const State part = state_at(job, totals - job.state_floats);
  for (int32_t s = 0; s < unit.num_splits; ++s) {
    for (int32_t h = 0; h < unit.num_heads; ++h) {
      const State total = state_at(job, totals + h * job.state_floats);
      run_piece(job, unit, {unit.first_split + s, h, s == 0}, scratch, s == 0 ? total : part);
      if (s > 0) fold(job, unit, total, part);
    }
  }
  for (int32_t h = 0; h < unit.num_heads; ++h)
    finish_head(job, unit, h, state_at(job, totals + h * job.state_floats));
}

void one_partial(AttentionJob& job, int64_t index, int64_t behind, int worker) {
  const Unit& unit = job.units[job.unit_of_partial[index]];
  float* scratch = job.worker_scratch + worker * job.worker_floats;
  const auto at = static_cast<int32_t>(index - unit.partial);
  const Piece piece{unit.first_split + at / unit.num_heads, at % unit.num_heads,
                    std::min<int64_t>(behind, at) < unit.num_heads};
  run_piece(job, unit, piece, scratch, state_at(job, job.partials + index * job.state_floats));
}

void merge_head(AttentionJob& job, const Unit& unit, int32_t head) {
  if (head >= unit.num_heads) return;
  float* first = job.partials + (unit.partial + head) * job.state_floats;
  const State total = state_at(job, first);
  for (int32_t s = 1; s < unit.num_splits; ++s)
    fold(job, unit, total, state_at(job, first + s * unit.num_heads * job.state_floats));
  finish_head(job, unit, head, total);
}

void attention_job(void* context, int worker) {
  AttentionJob& job = *static_cast<AttentionJob*>(context);
  if (!job.split_keys) {
    job.run.run(job.num_units, [&](int64_t u) { whole_unit(job, job.units[u], worker); });
    return;
  }
  int64_t first = 0, next = -1;  // partials that this worker did one behind the other
  job.stream.run(job.num_partials, worker, pool().threads(), [&](int64_t p) {
    if (p != next) first = p;
    next = p + 1;
    one_partial(job, p, p - first, worker);
  });
  job.merge.run(job.num_units * job.max_heads, [&](int64_t i) {
    merge_head(job, job.units[i / job.max_heads], static_cast<int32_t>(i % job.max_heads));
  });
}

ft_status check(const ft_attention_args& a) {
  if (a.sequences < 0 || a.heads <= 0 || a.kv_heads <= 0 || a.heads % a.kv_heads != 0 ||
      a.head_dim <= 0 || a.window < 0 || a.window > INT32_MAX || a.max_pages < 0)
    return FT_ERR_ARGUMENT;
  if (!is_pool_format(a.pool_format, a.head_dim)) return FT_ERR_FORMAT;
  if (a.sequences == 0) return FT_OK;
  if (!a.q || !a.k_pool || !a.v_pool || !a.query_start || !a.context_len || !a.page_table || !a.out)
    return FT_ERR_ARGUMENT;
  if (a.pool_format == FT_Q8_0 && (!a.k_scales || !a.v_scales)) return FT_ERR_ARGUMENT;
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t queries = int64_t{a.query_start[s + 1]} - a.query_start[s];
    const int64_t pages = (int64_t{a.context_len[s]} + kPageTokens - 1) / kPageTokens;
    if (a.query_start[s] < 0 || queries < 0 || a.context_len[s] < queries) return FT_ERR_ARGUMENT;
    if (pages > a.max_pages) return FT_ERR_INDEX;
    for (int64_t p = 0; p < pages; ++p) {
      const int32_t page = a.page_table[s * a.max_pages + p];
      if (page < 0 || page >= a.num_pages) return FT_ERR_INDEX;
    }
  }
  return FT_OK;
}

// Walks the units in order; writes them where `units` is given. Returns multiply-adds.
int64_t plan_units(AttentionJob& job, Unit* units, int32_t* owners) {
  const ft_attention_args& a = *job.args;
  const auto per_kv = static_cast<int32_t>(a.heads / a.kv_heads);
  const int32_t block = std::max(1, static_cast<int32_t>(kBlockRows) / per_kv);
  int64_t work = 0;
  job.num_units = job.num_partials = job.max_rows = job.max_heads = 0;
  for (int32_t s = 0; s < a.sequences; ++s) {
    const int32_t queries = a.query_start[s + 1] - a.query_start[s];
    for (int32_t first = 0; first < queries; first += block) {
      const int32_t count = std::min(queries - first, block), rows = count * per_kv;
      const int32_t oldest = a.context_len[s] - queries + first;
      const int32_t end = oldest + count;
      const int64_t low = a.window > 0 ? std::max<int64_t>(0, int64_t{oldest} - a.window + 1) : 0;
      Unit unit{};
      unit.sequence = s;
      unit.num_heads = rows <= kStreamedRows ? static_cast<int32_t>(a.kv_heads) : 1;
      unit.first_query = first;
      unit.num_queries = count;
      unit.first_split = static_cast<int32_t>(low / kSplitKeys);
      unit.num_splits = (end + kSplitKeys - 1) / kSplitKeys - unit.first_split;
      job.max_rows = std::max<int64_t>(job.max_rows, rows);
      job.max_heads = std::max<int64_t>(job.max_heads, unit.num_heads);
      for (int32_t g = 0; g < a.kv_heads; g += unit.num_heads) {
        unit.first_head = g;
        unit.partial = job.num_partials;
        const int32_t partials = unit.num_splits * unit.num_heads;
        if (units) {
          units[job.num_units] = unit;
          std::fill_n(owners + unit.partial, partials, static_cast<int32_t>(job.num_units));
        }
        ++job.num_units;
        job.num_partials += partials;
      }
      work += int64_t{end - low} * count * a.heads * a.head_dim * 2;
    }
  }
  return work;
}

}  // namespace
}  // namespace ft

extern "C" ft_status ft_attention(const ft_attention_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_attention_args)) return FT_ERR_SIZE;
  const ft_status status = check(*args);
  if (status != FT_OK || args->sequences == 0) return status;
  std::lock_guard<std::mutex> lock(api_mutex());
  AttentionJob job{};
  job.args = args;
  job.table = &kernels();
  const int threads = pool().threads();
  const int64_t work = plan_units(job, nullptr, nullptr);
  if (job.num_units == 0) return FT_OK;
  job.padded_dim = round_up(args->head_dim, 16);
  job.state_floats = 2 * round_up(job.max_rows, 16) + job.max_rows * job.padded_dim;
  job.state_floats = round_up(job.state_floats, 16);
  job.worker_floats = round_up(job.max_rows * 12, 64) / 4 +
                      round_up(attend_scratch_floats(job.max_rows, job.padded_dim), 16) +
                      (1 + job.max_heads) * job.state_floats;
  job.split_keys = threads > 1 && job.num_units < 4 * threads && job.num_partials > job.num_units;
  const int64_t unit_bytes = round_up(job.num_units * int64_t{sizeof(Unit)}, 64);
  const int64_t owner_bytes = round_up(job.num_partials * 4, 64);
  const int64_t scratch_bytes = threads * job.worker_floats * 4;
  const int64_t partial_bytes = job.split_keys ? job.num_partials * job.state_floats * 4 : 0;
  auto* base =
      static_cast<uint8_t*>(workspace(unit_bytes + owner_bytes + scratch_bytes + partial_bytes));
  if (!base) return FT_ERR_MEMORY;
  job.units = reinterpret_cast<Unit*>(base);
  job.unit_of_partial = reinterpret_cast<int32_t*>(base + unit_bytes);
  job.worker_scratch = reinterpret_cast<float*>(base + unit_bytes + owner_bytes);
  job.partials = reinterpret_cast<float*>(base + unit_bytes + owner_bytes + scratch_bytes);
  plan_units(job, job.units, job.unit_of_partial);
  pool().run(attention_job, &job, work >= kParallelWork);
  return FT_OK;
}

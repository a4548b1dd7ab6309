// ft_linear: a matrix in panels against a batch of rows.
#include <algorithm>

#include "dispatch.h"
#include "pool.h"
#include "workspace.h"

namespace ft {
namespace {

constexpr int64_t kUnitBytes = 96 * 1024;
constexpr int64_t kCallerPackTokens = 4;  // packing that few rows is cheaper than a phase

struct LinearJob {
  const ft_linear_args* args;
  const KernelTable* table;
  Way way;
  float* packed;  // activations in panel order, or null
  int64_t packed_stride;
  int64_t panel_bytes;
  int64_t panels;
  int64_t panels_per_unit;
  int64_t panel_groups;
  int64_t blocks;
  bool pack_in_job;
  int threads;
  Phase pack;
  StreamPhase multiply;
};

void pack_token(LinearJob& job, int64_t t) {
  const ft_linear_args& a = *job.args;
  job.way.pack(a.x + t * a.x_stride, a.cols, job.packed + t * job.packed_stride);
}

void multiply_unit(LinearJob& job, int64_t unit) {
  const ft_linear_args& a = *job.args;
  const int64_t block = unit / job.panel_groups, group = unit % job.panel_groups;
  const int64_t first = block * kMaxBlockTokens;
  const int tokens = static_cast<int>(std::min<int64_t>(kMaxBlockTokens, a.tokens - first));
  alignas(64) float y[kMaxBlockTokens * kPanelRows];
  const float* x[kMaxBlockTokens];
  for (int t = 0; t < tokens; ++t) {
    x[t] =
        job.packed ? job.packed + (first + t) * job.packed_stride : a.x + (first + t) * a.x_stride;
  }
  const int64_t bytes = job.panel_bytes;
  PanelRun run{nullptr, a.cols, x, a.cols, tokens, prefetch_bytes(), y};
  const int64_t end = std::min(job.panels, (group + 1) * job.panels_per_unit);
  for (int64_t p = group * job.panels_per_unit; p < end; ++p) {
    run.panel = static_cast<const uint8_t*>(a.weights) + p * bytes;
    job.way.panel(&run);
    const int64_t row = p * kPanelRows;
    const int rows = static_cast<int>(std::min<int64_t>(kPanelRows, a.rows - row));
    const float* bias = a.bias ? a.bias + row : nullptr;
    for (int t = 0; t < tokens; ++t)
      job.table->store(y + t * kPanelRows, bias, a.out + (first + t) * a.out_stride + row, rows,
                       (a.flags & FT_ACCUMULATE) != 0);
  }
}

void linear_job(void* context, int worker) {
  LinearJob& job = *static_cast<LinearJob*>(context);
  if (job.pack_in_job) job.pack.run(job.args->tokens, [&](int64_t t) { pack_token(job, t); });
  job.multiply.run(job.blocks * job.panel_groups, worker, job.threads,
                   [&](int64_t u) { multiply_unit(job, u); });
}

ft_status check(const ft_linear_args& a, int format) {
  if (a.tokens < 0 || a.rows <= 0 || a.cols <= 0) return FT_ERR_ARGUMENT;
  if (format < 0) return FT_ERR_FORMAT;
  if (a.cols % group_elements(format) != 0) return FT_ERR_ARGUMENT;
  if (a.tokens > 0 && (!a.x || !a.weights || !a.out)) return FT_ERR_ARGUMENT;
  if (!aligned64(a.weights)) return FT_ERR_ALIGN;
  return FT_OK;
}

}  // namespace
}  // namespace ft

extern "C" ft_status ft_linear(const ft_linear_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_linear_args)) return FT_ERR_SIZE;
  const int format = format_index(args->format);
  if (ft_status status = check(*args, format); status != FT_OK || args->tokens == 0) return status;
  std::lock_guard<std::mutex> lock(api_mutex());
  LinearJob job{};
  job.args = args;
  job.table = &kernels();
  job.way = way_for(format, args->tokens);
  job.panel_bytes = panel_bytes(format, args->cols);
  if (job.way.pack != nullptr) {
    job.packed_stride = packed_row_floats(args->cols);
    job.packed = static_cast<float*>(workspace(args->tokens * job.packed_stride * 4));
    if (!job.packed) return FT_ERR_MEMORY;
    job.pack_in_job = args->tokens > kCallerPackTokens;
    if (!job.pack_in_job)
      for (int64_t t = 0; t < args->tokens; ++t) pack_token(job, t);
  }
  const int threads = job.threads = pool().threads();
  job.panels = (args->rows + kPanelRows - 1) / kPanelRows;
  job.blocks = (args->tokens + kMaxBlockTokens - 1) / kMaxBlockTokens;
  const int64_t by_size = std::max<int64_t>(1, kUnitBytes / job.panel_bytes);
  const int64_t by_share = job.panels * job.blocks / (threads * 8);
  job.panels_per_unit = std::max<int64_t>(1, std::min(by_size, by_share));
  job.panel_groups = (job.panels + job.panels_per_unit - 1) / job.panels_per_unit;
  pool().run(linear_job, &job, args->tokens * args->rows * args->cols >= kParallelWork);
  return FT_OK;
}

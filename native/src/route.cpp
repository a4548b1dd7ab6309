// ft_route: experts and weights of each token from its router logits.
#include <algorithm>

#include "dispatch.h"
#include "pool.h"
#include "workspace.h"

namespace ft {
namespace {

constexpr int64_t kUnitTokens = 16;

struct RouteJob {
  const ft_route_args* args;
  const KernelTable* table;
  RouteSpec spec;
  float* scratch;  // [threads][scratch_stride]
  int64_t scratch_stride;
  Phase tokens;
};

void route_unit(RouteJob& job, int64_t unit, int worker) {
  const ft_route_args& a = *job.args;
  const int64_t end = std::min(a.tokens, (unit + 1) * kUnitTokens);
  for (int64_t t = unit * kUnitTokens; t < end; ++t)
    job.table->route(a.logits + t * a.logits_stride, &job.spec,
                     job.scratch + worker * job.scratch_stride, a.expert_ids + t * a.slots,
                     a.expert_weights + t * a.slots);
}

ft_status check(const ft_route_args& a) {
  if (a.tokens < 0 || a.slots <= 0 || a.experts < a.slots || a.experts > INT32_MAX)
    return FT_ERR_ARGUMENT;
  if (a.score > FT_SCORE_SIGMOID) return FT_ERR_ARGUMENT;
  if (a.tokens > 0 && (!a.logits || !a.expert_ids || !a.expert_weights)) return FT_ERR_ARGUMENT;
  return FT_OK;
}

}  // namespace
}  // namespace ft

extern "C" ft_status ft_route(const ft_route_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_route_args)) return FT_ERR_SIZE;
  if (ft_status status = check(*args); status != FT_OK || args->tokens == 0) return status;
  std::lock_guard<std::mutex> lock(api_mutex());
  RouteJob job{};
  job.args = args;
  job.table = &kernels();
  job.spec = RouteSpec{args->score == FT_SCORE_SIGMOID,
                       (args->flags & FT_NORMALIZE) != 0,
                       args->experts,
                       args->slots,
                       args->bias,
                       args->scale};
  job.scratch_stride = round_up(args->experts, 16);
  job.scratch = static_cast<float*>(workspace(4 * pool().threads() * job.scratch_stride));
  if (!job.scratch) return FT_ERR_MEMORY;
  pool().run(
      [](void* context, int worker) {
        auto& j = *static_cast<RouteJob*>(context);
        const int64_t units = (j.args->tokens + kUnitTokens - 1) / kUnitTokens;
        j.tokens.run(units, [&](int64_t unit) { route_unit(j, unit, worker); });
      },
      &job, args->tokens * args->experts >= kParallelWork / 8);
  return FT_OK;
}

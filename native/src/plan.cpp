// ft_run_ops: a recorded list of calls, made one after the other without the caller in between.
#include <chrono>

#include "ft/abi.h"

namespace ft {
namespace {

ft_status run_op(const ft_op& op) {
  switch (op.kind) {
    case FT_OP_LINEAR:
      return ft_linear(static_cast<const ft_linear_args*>(op.args));
    case FT_OP_EXPERT_FFN:
      return ft_expert_ffn(static_cast<const ft_expert_ffn_args*>(op.args));
    case FT_OP_RMS_NORM:
      return ft_rms_norm(static_cast<const ft_rms_norm_args*>(op.args));
    case FT_OP_ROPE_STORE:
      return ft_rope_store(static_cast<const ft_rope_store_args*>(op.args));
    case FT_OP_ATTENTION:
      return ft_attention(static_cast<const ft_attention_args*>(op.args));
    case FT_OP_EMBED_ROWS:
      return ft_embed_rows(static_cast<const ft_embed_rows_args*>(op.args));
    case FT_OP_ROUTE:
      return ft_route(static_cast<const ft_route_args*>(op.args));
    case FT_OP_GATED_DELTA:
      return ft_gated_delta(static_cast<const ft_gated_delta_args*>(op.args));
    case FT_OP_SHORT_CONV:
      return ft_short_conv(static_cast<const ft_short_conv_args*>(op.args));
    default:
      return FT_ERR_ARGUMENT;
  }
}

ft_status run_timed(const ft_run_ops_args& args) {
  auto before = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < args.count; ++i) {
    if (const ft_status status = run_op(args.ops[i]); status != FT_OK) return status;
    const auto now = std::chrono::steady_clock::now();
    args.nanoseconds[i] = std::chrono::nanoseconds(now - before).count();
    before = now;
  }
  return FT_OK;
}

}  // namespace
}  // namespace ft

extern "C" ft_status ft_run_ops(const ft_run_ops_args* args) {
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_run_ops_args)) return FT_ERR_SIZE;
  if (args->count < 0 || (args->count > 0 && !args->ops)) return FT_ERR_ARGUMENT;
  if (args->nanoseconds) return ft::run_timed(*args);
  for (int64_t i = 0; i < args->count; ++i)
    if (const ft_status status = ft::run_op(args->ops[i]); status != FT_OK) return status;
  return FT_OK;
}

// The kernel bodies and the table of one target. Included last by targets/<isa>.cpp, which names
// the table (FT_TABLE) and the target (FT_TARGET) and has included its vector layer.
#include "kernel_table.h"
#include "kernels/formats-inl.h"
#include "kernels/small-floats-inl.h"
#if defined(FT_HAVE_DOTS)
#include "kernels/dots-inl.h"
#endif
#include "kernels/panel-inl.h"
#if defined(FT_HAVE_DOTS)
#include "kernels/ints-inl.h"
#endif
#include "kernels/codes-inl.h"
#if defined(FT_HAVE_DOTS)
#include "kernels/k-quants-inl.h"
#include "kernels/k-many-inl.h"
#else
#include "kernels/int8-inl.h"
#endif
#include "kernels/math-inl.h"
#include "kernels/peak-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/attention-inl.h"
#if defined(FT_HAVE_DOTS)
#include "kernels/attention-dots-inl.h"
#endif
#include "kernels/recurrent-inl.h"
#include "kernels/route-inl.h"

namespace ft {
namespace {

void attend(const AttendRun* run) {
#if defined(FT_HAVE_DOTS)
  if (run->pool_format == kBf16 && run->head_dim % kPairDims == 0) return attend_pairs(run);
#endif
  attend_floats(run);
}

}  // namespace

#if defined(FT_HAVE_DOTS)
#define FT_INT_PANELS(AS)                                                                       \
  panel_ints<AS<Q8Ints>>, panel_ints<AS<Q40Ints>>, panel_ints<AS<Q41Ints>>,                     \
      panel_ints<AS<Mxfp4Ints<NibbleInts>>>, panel_ints<AS<Mxfp4Ints<SplitNibbleInts>>>,        \
      panel_ints<AS<Nvfp4Ints<false>>>, panel_ints<AS<Nvfp4Ints<true>>>, panel<Fp8TensorDots>,  \
      panel<Fp8BlockDots>, panel_codes<AS<Q50Codes>>, panel_codes<AS<Q51Codes>>,                \
      panel_k<AS<Q4KInts>>, panel_k<AS<Q5KInts>>, panel_k<AS<Q6KInts>>
#define FT_INT_ROWS(AS, PACK)                                                                   \
  PACK<AS<Q8Ints>>, PACK<AS<Q40Ints>>, PACK<AS<Q41Ints>>, PACK<AS<Mxfp4Ints<NibbleInts>>>,      \
      PACK<AS<Mxfp4Ints<SplitNibbleInts>>>, PACK<AS<Nvfp4Ints<false>>>,                         \
      PACK<AS<Nvfp4Ints<true>>>, pack_dots<Fp8TensorDots>, pack_dots<Fp8BlockDots>,             \
      pack_ints<AS<Q50Codes>>, pack_ints<AS<Q51Codes>>, pack_k<AS<Q4KInts>>,                    \
      pack_k<AS<Q5KInts>>, pack_k<AS<Q6KInts>>
#define FT_BUT_K                                                                                \
  nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,     \
      nullptr, nullptr, nullptr, nullptr
static_assert(kQ4K == 14 && kQ5K == 15 && kQ6K == 16);
#endif

extern const KernelTable FT_TABLE;
const KernelTable FT_TABLE = {
    FT_TARGET,
    peak_products,
#if defined(FT_HAVE_DOTS)
    {{15,
      2,
      {panel<F32Words>, panel<F16Words>, panel<Bf16Dots>, FT_INT_PANELS(AsIs)},
      {nullptr, nullptr, pack_dots<Bf16Dots>, FT_INT_ROWS(AsIs, pack_int_groups)},
      {FT_BUT_K, panel_k_many<Q4KInts>, panel_k_many<Q5KInts>, panel_k_many<Q6KInts>},
      {FT_BUT_K, pack_k_many<Q4KInts>, pack_k_many<Q5KInts>, pack_k_many<Q6KInts>},
      kIntFormats & ~(1u << kQ5_0 | 1u << kQ5_1)},
     {8,
      2,
      {panel<F32Words>, panel<F16Words>, panel<Bf16Dots>, FT_INT_PANELS(AsInt8)},
      {nullptr, nullptr, pack_dots<Bf16Dots>, FT_INT_ROWS(AsInt8, pack_ints)},
      {},
      {},
      kIntFormats}},
#else
#define FT_FLOAT_PANELS                                                                         \
  {panel<F32Words>, panel<F16Words>, panel<Bf16Words>, panel<Q8Words>, panel<Q40Words>,         \
   panel<Q41Words>, panel<Mxfp4Words>, panel<Mxfp4Words>, panel<Nvfp4Words<false>>,             \
   panel<Nvfp4Words<true>>, panel<Fp8TensorWords>, panel<Fp8BlockWords>,                        \
   panel_codes<Q50Codes>, panel_codes<Q51Codes>, panel_codes<Q4KCodes>,                         \
   panel_codes<Q5KCodes>, panel_codes<Q6KCodes>}
    {{32,
      4,
      FT_FLOAT_PANELS,
      {nullptr, nullptr, nullptr, nullptr, pack_row_q4, pack_row_q4, nullptr, pack_row_mxfp4_gguf,
       nullptr, nullptr, nullptr, nullptr, pack_row_sums, pack_row_sums, pack_row_sums,
       pack_row_sums, pack_row_sums},
      {},
      {},
      0},
     {8,
      4,
      FT_FLOAT_PANELS,
      {nullptr, nullptr, nullptr, pack_int8<nullptr, kChunk>, pack_int8<pack_row_q4, kChunk>,
       pack_int8<pack_row_q4, kChunk>, pack_int8<nullptr, kChunk>,
       pack_int8<pack_row_mxfp4_gguf, kChunk>, pack_int8<nullptr, kChunk>,
       pack_int8<nullptr, kChunk>, nullptr, nullptr, pack_int8<pack_row_sums, kChunk>,
       pack_int8<pack_row_sums, kChunk>, pack_int8<pack_row_sums, kKElements>,
       pack_int8<pack_row_sums, kKElements>, pack_int8<pack_row_sums, kKElements>},
      {},
      {},
      kKFormats}},
#endif
    store,
    glu,
    weighted_sum,
    rms_scale,
    norm_row,
    add_row,
    rope,
    to_bf16,
    to_q8,
    attend,
    attend_merge,
    attend_finish,
    conv_row,
    delta_step,
    silu_times,
    multiply_rows,
    route,
};

}  // namespace ft

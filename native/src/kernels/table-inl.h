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
#endif
#include "kernels/math-inl.h"
#include "kernels/peak-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/attention-inl.h"
#include "kernels/recurrent-inl.h"
#include "kernels/route-inl.h"

namespace ft {

extern const KernelTable FT_TABLE;
const KernelTable FT_TABLE = {
    FT_TARGET,
    peak_products,
#if defined(FT_HAVE_DOTS)
    2,
    {panel<F32Words>, panel<F16Words>, panel<Bf16Dots>, panel_ints<Q8Ints>, panel_ints<Q40Ints>,
     panel_ints<Q41Ints>, panel_ints<Mxfp4Ints<NibbleInts>>,
     panel_ints<Mxfp4Ints<SplitNibbleInts>>, panel_ints<Nvfp4Ints<false>>,
     panel_ints<Nvfp4Ints<true>>, panel<Fp8TensorDots>, panel<Fp8BlockDots>,
     panel_codes<Q50Codes>, panel_codes<Q51Codes>,
     panel_k<Q4KInts>, panel_k<Q5KInts>, panel_codes<Q6KCodes>},
    {nullptr, nullptr, pack_dots<Bf16Dots>, pack_int_groups<Q8Ints>, pack_int_groups<Q40Ints>,
     pack_int_groups<Q41Ints>, pack_int_groups<Mxfp4Ints<NibbleInts>>,
     pack_int_groups<Mxfp4Ints<SplitNibbleInts>>, pack_int_groups<Nvfp4Ints<false>>,
     pack_int_groups<Nvfp4Ints<true>>, pack_dots<Fp8TensorDots>, pack_dots<Fp8BlockDots>,
     pack_ints<Q50Codes>, pack_ints<Q51Codes>, pack_k, pack_k, pack_ints<Q6KCodes>},
    1u << kQ8_0 | 1u << kQ4_0 | 1u << kQ4_1 | 1u << kMxfp4 | 1u << kMxfp4Gguf | 1u << kNvfp4 |
        1u << kNvfp4Div | 1u << kQ4K | 1u << kQ5K,
#else
    4,
    {panel<F32Words>, panel<F16Words>, panel<Bf16Words>, panel<Q8Words>, panel<Q40Words>,
     panel<Q41Words>, panel<Mxfp4Words>, panel<Mxfp4Words>, panel<Nvfp4Words<false>>,
     panel<Nvfp4Words<true>>, panel<Fp8TensorWords>, panel<Fp8BlockWords>,
     panel_codes<Q50Codes>, panel_codes<Q51Codes>,
     panel_codes<Q4KCodes>, panel_codes<Q5KCodes>, panel_codes<Q6KCodes>},
    {nullptr, nullptr, nullptr, nullptr, pack_row_q4, pack_row_q4, nullptr, pack_row_mxfp4_gguf,
     nullptr, nullptr, nullptr, nullptr, pack_row_sums, pack_row_sums, pack_row_sums,
     pack_row_sums, pack_row_sums},
    0,
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

// The kernel bodies and the table of one target. Included last by targets/<isa>.cpp, which names
// the table (FT_TABLE) and the target (FT_TARGET) and has included its vector layer.
#include "kernel_table.h"
#include "kernels/formats-inl.h"
#include "kernels/small-floats-inl.h"
#if defined(FT_HAVE_DOTS)
#include "kernels/dots-inl.h"
#endif
#include "kernels/panel-inl.h"
#include "kernels/math-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/attention-inl.h"
#include "kernels/route-inl.h"

namespace ft {

extern const KernelTable FT_TABLE;
const KernelTable FT_TABLE = {
    FT_TARGET,
#if defined(FT_HAVE_DOTS)
    2,
    {panel<F32Words>, panel<F16Words>, panel<Bf16Dots>, panel<Q8Dots>, panel<Q40Dots>,
     panel<Q41Dots>, panel<Mxfp4Dots>, panel<Mxfp4GgufDots>, panel<Nvfp4Dots<false>>,
     panel<Nvfp4Dots<true>>, panel<Fp8TensorDots>, panel<Fp8BlockDots>},
    {nullptr, nullptr, pack_dots<Bf16Dots>, pack_dots<Q8Dots>, pack_dots<Q40Dots>,
     pack_dots<Q41Dots>, pack_dots<Mxfp4Dots>, pack_dots<Mxfp4GgufDots>,
     pack_dots<Nvfp4Dots<false>>, pack_dots<Nvfp4Dots<true>>, pack_dots<Fp8TensorDots>,
     pack_dots<Fp8BlockDots>},
#else
    4,
    {panel<F32Words>, panel<F16Words>, panel<Bf16Words>, panel<Q8Words>, panel<Q40Words>,
     panel<Q41Words>, panel<Mxfp4Words>, panel<Mxfp4Words>, panel<Nvfp4Words<false>>,
     panel<Nvfp4Words<true>>, panel<Fp8TensorWords>, panel<Fp8BlockWords>},
    {nullptr, nullptr, nullptr, nullptr, pack_row_q4, pack_row_q4, nullptr, pack_row_mxfp4_gguf,
     nullptr, nullptr, nullptr, nullptr},
#endif
    store,
    glu,
    weighted_sum,
    rms_scale,
    norm_row,
    add_row,
    rope,
    to_bf16,
    attend,
    attend_merge,
    attend_finish,
    route,
};

}  // namespace ft

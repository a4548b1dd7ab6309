// The kernel bodies and the table of one target. Included last by targets/<isa>.cpp, which names
// the table (FT_TABLE) and the target (FT_TARGET) and has included its vector layer.
#include "kernel_table.h"
#include "kernels/formats-inl.h"
#include "kernels/small-floats-inl.h"
#include "kernels/panel-inl.h"
#include "kernels/math-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/attention-inl.h"
#include "kernels/route-inl.h"

namespace ft {

extern const KernelTable FT_TABLE;
const KernelTable FT_TABLE = {
    FT_TARGET,
    {panel<F32Words>, panel<F16Words>, panel<Bf16Words>, panel<Q8Words>, panel<Q40Words>,
     panel<Q41Words>, panel<Mxfp4Words>, panel<Mxfp4Words>, panel<Nvfp4Words<false>>,
     panel<Nvfp4Words<true>>, panel<Fp8TensorWords>, panel<Fp8BlockWords>},
    {nullptr, nullptr, nullptr, nullptr, pack_row_q4, pack_row_q4, nullptr, pack_row_mxfp4_gguf,
     nullptr, nullptr, nullptr, nullptr},
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

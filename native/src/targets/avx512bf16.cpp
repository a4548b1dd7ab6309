// The avx512bf16 target: AVX-512 whose products take pairs of bfloat16. Compiled with its own flags.
#define FT_HAVE_DOTS 1
#include "targets/vec_avx512.h"

#define FT_TARGET "avx512bf16"
#define FT_TABLE kAvx512Bf16Table
#include "kernels/table-inl.h"

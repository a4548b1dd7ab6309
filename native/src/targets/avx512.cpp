// The avx512 target: its vector layer under the shared kernel bodies. Compiled with its own flags.
#include "targets/vec_avx512.h"

#define FT_TARGET "avx512"
#define FT_TABLE kAvx512Table
#include "kernels/table-inl.h"

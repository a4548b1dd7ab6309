// The avx2 target: its vector layer under the shared kernel bodies. Compiled with its own flags.
#include "targets/vec_avx2.h"

#define FT_TARGET "avx2"
#define FT_TABLE kAvx2Table
#include "kernels/table-inl.h"

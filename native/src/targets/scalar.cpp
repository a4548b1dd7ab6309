// The scalar target: its vector layer under the shared kernel bodies. Compiled with its own flags.
#include "targets/vec_scalar.h"

#define FT_TARGET "scalar"
#define FT_TABLE kScalarTable
#include "kernels/table-inl.h"

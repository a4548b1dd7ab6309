// Rows copied to rows, by the whole pool: KV pages and states between where steps use them and where
// they are parked. Called by ftengine/kernels/native.py.
#ifndef FT_COPY_ROWS_H_
#define FT_COPY_ROWS_H_

#include <stdint.h>

#include "ft/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

// Row target_ids[i] of the target becomes row source_ids[i] of the source, i < count; no target row
// may stand twice. A row has `parts` parts of part_bytes bytes each. Units: bytes; row = from one
// row to the next, part = from one part of a row to the next.
//   0 size  4 zero  8 source  16 source_row  24 source_part  32 source_rows  40 target
//   48 target_row  56 target_part  64 target_rows  72 parts  80 part_bytes  88 source_ids i64
//   96 target_ids i64  104 count
typedef struct {
  uint32_t size;
  uint32_t zero;
  const void* source;
  int64_t source_row, source_part, source_rows;
  void* target;
  int64_t target_row, target_part, target_rows;
  int64_t parts, part_bytes;
  const int64_t* source_ids;
  const int64_t* target_ids;
  int64_t count;
} ft_copy_rows_args;
FT_STATIC_ASSERT(sizeof(ft_copy_rows_args) == 112, "layout");

FT_API ft_status ft_copy_rows(const ft_copy_rows_args* args);

#ifdef __cplusplus
}
#endif
#endif  // FT_COPY_ROWS_H_

// ft_copy_rows: memory to memory, with nothing looked at.
#include "ft/copy_rows.h"

#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "pool.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ft {
namespace {

constexpr int64_t kUnitBytes = 64 << 10;
// From here on the target is written past the caches: they could not keep it, and would read it
// first.
constexpr int64_t kStreamBytes = 4 << 20;
constexpr int64_t kWakeBytes = 128 << 10;

struct CopyJob {
  const ft_copy_rows_args* args;
  int64_t per_part;  // pieces that a part is cut in, for long parts
  int64_t per_unit;  // pieces that are copied together, for short ones
  int64_t pieces;
  int threads;
  bool streams;
  StreamPhase units;
};

void copy_past_caches(char* to, const char* from, int64_t bytes) {
#if defined(__SSE2__)
  const int64_t before = -reinterpret_cast<intptr_t>(to) & 15;
  if (bytes >= 64 + before) {
    std::memcpy(to, from, static_cast<size_t>(before));
    to += before, from += before, bytes -= before;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
      __m128i line[4];
      for (int i = 0; i < 4; ++i)
        line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, line[i]);
    }
  }
#endif
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void copy_piece(const CopyJob& job, int64_t piece) {
  const ft_copy_rows_args& a = *job.args;
  const int64_t number = piece / job.per_part, row = number / a.parts, part = number % a.parts;
  const int64_t first = a.part_bytes * (piece % job.per_part) / job.per_part;
  const int64_t end = a.part_bytes * (piece % job.per_part + 1) / job.per_part;
  const char* from = static_cast<const char*>(a.source) + a.source_ids[row] * a.source_row +
                     part * a.source_part + first;
  char* to = static_cast<char*>(a.target) + a.target_ids[row] * a.target_row +
             part * a.target_part + first;
  if (job.streams)
    copy_past_caches(to, from, end - first);
  else
    std::memcpy(to, from, static_cast<size_t>(end - first));
}

void copy_unit(const CopyJob& job, int64_t unit) {
  const int64_t end = std::min(job.pieces, (unit + 1) * job.per_unit);
  for (int64_t piece = unit * job.per_unit; piece < end; ++piece) copy_piece(job, piece);
#if defined(__SSE2__)
  if (job.streams) _mm_sfence();  // such stores are in no order with the one that says "done"
#endif
}

bool are_below(const int64_t* ids, int64_t count, int64_t rows) {
  return std::all_of(ids, ids + count, [=](int64_t id) { return id >= 0 && id < rows; });
}

ft_status check_copy(const ft_copy_rows_args& a) {
  if (a.count < 0 || a.parts < 0 || a.part_bytes < 0) return FT_ERR_ARGUMENT;
  if (a.count == 0 || a.parts == 0 || a.part_bytes == 0) return FT_OK;
  if (!a.source || !a.target || !a.source_ids || !a.target_ids) return FT_ERR_ARGUMENT;
  if (!are_below(a.source_ids, a.count, a.source_rows)) return FT_ERR_INDEX;
  if (!are_below(a.target_ids, a.count, a.target_rows)) return FT_ERR_INDEX;
  return FT_OK;
}

}  // namespace
}  // namespace ft

extern "C" ft_status ft_copy_rows(const ft_copy_rows_args* args) {
  using namespace ft;
  if (!args) return FT_ERR_ARGUMENT;
  if (args->size != sizeof(ft_copy_rows_args)) return FT_ERR_SIZE;
  const ft_status status = check_copy(*args);
  const int64_t bytes = args->count * args->parts * args->part_bytes;
  if (status != FT_OK || bytes <= 0) return status;
  std::lock_guard<std::mutex> lock(api_mutex());
  CopyJob job{};
  job.args = args;
  job.per_part = (args->part_bytes + kUnitBytes - 1) / kUnitBytes;
  job.per_unit = std::max<int64_t>(kUnitBytes / args->part_bytes, 1);
  job.pieces = args->count * args->parts * job.per_part;
  job.threads = pool().threads();
  job.streams = bytes >= kStreamBytes;
  pool().run(
      [](void* context, int worker) {
        auto& j = *static_cast<CopyJob*>(context);
        j.units.run((j.pieces + j.per_unit - 1) / j.per_unit, worker, j.threads,
                    [&](int64_t unit) { copy_unit(j, unit); });
      },
      &job, bytes >= kWakeBytes);
  return FT_OK;
}

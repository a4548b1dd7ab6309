// Products of small integers, for targets with an instruction that adds four products of unsigned
// and signed bytes to an int32 lane.
//
// Codes become unsigned bytes (their value plus kOffset); a chunk of activations becomes int16 in
// units of its largest / 32512, kept as upper and lower bytes, both signed. Sums over a chunk are
// exact; what the offset adds is taken back by what the lower sum starts with. Scales stay float32.
//
// A chunk of a packed row is 32 upper bytes, then 32 lower ones, in the order of the words' groups of
// four (order()); where activations have 8 bits (AsInt8), in units of the chunk's largest / 127, there
// are 32 bytes, which stand for the lower ones. Extras: for each half of the chunk -kOffset * sum as int32; the unit times
// kIntUnit; the sum times the unit (float32).
//
// Rows of whole groups of 256 elements have one unit for a group: sums of chunks are then scaled by
// the weights alone, and the last of the extras is the sum itself (mxfp4, 64 tokens, one thread of
// Zen 4: 159 -> 171 GFLOP/s).
namespace ft {
namespace {

constexpr int kGroupChunks = 8;
constexpr int kGroupElements = kGroupChunks * kChunk;

template <class W>
using AsIs = W;

// A format whose activations become int8.
template <class W>
struct AsInt8 : W {
  static constexpr int kBytes = 1;
};

// Both nibbles of every byte: group 0 the low ones, 1 the high ones. Elements in row order.
struct NibbleInts {
  static constexpr int kGroups = 2;
  static constexpr int order(int place) { return place / 8 * 8 + place % 4 * 2 + place / 4 % 2; }
};

// GGML's order: low nibbles are the first half of a chunk, high ones the second.
struct SplitNibbleInts {
  static constexpr int kGroups = 2;
  static constexpr int order(int place) { return place / 8 * 4 + place % 4 + place / 4 % 2 * 16; }
};

template <int g>
FT_INLINE VI nibble_bytes(VI v, const uint8_t* table) {
  return vi_lookup_bytes(g == 0 ? v : vi_shr<4>(v), table);
}

template <int R>
FT_INLINE void load_halves(const ChunkAt& at, int offset, VF* d) {
  const uint16_t* scales = (const uint16_t*)at.scales + offset + at.first_row;
  FT_UNROLL
  for (int r = 0; r < R; ++r) d[r] = vf_load_half(scales + r * kLanes);
}

// acc += (d * unit) * sum, or without the unit where it belongs to a group
template <int T, int R, bool grouped>
FT_INLINE void add_scaled(const ChunkAt& at, const VF* d, VF (*s)[R], VF (*acc)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r)
      acc[t][r] = vf_fma(grouped ? d[r] : vf_mul_at(d[r], at.extras(t) + 2), s[t][r], acc[t][r]);
  }
}

struct Q8Ints : Q8Words {
  static constexpr int kGroups = 1, kOffset = 128;
  static constexpr int order(int place) { return place; }
  template <int g>
  FT_INLINE VI group(VI v) {
    return vi_xor(v, vi_set1((int32_t)0x80808080));
  }
  template <int T, int R, bool grouped>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    VF d[R];
    load_halves<R>(at, 0, d);
    add_scaled<T, R, grouped>(at, d, s[0], acc);
  }
};

struct Q40Ints : Q40Words, SplitNibbleInts {
  static constexpr int kOffset = 8;
  template <int g>
  FT_INLINE VI group(VI v) {
    return nibble_bytes<g>(v, kNumberBytes);
  }
  template <int T, int R, bool grouped>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    VF d[R];
    load_halves<R>(at, 0, d);
    add_scaled<T, R, grouped>(at, d, s[0], acc);
  }
};

struct Q41Ints : Q41Words, SplitNibbleInts {
  static constexpr int kOffset = 0;
  template <int g>
  FT_INLINE VI group(VI v) {
    return nibble_bytes<g>(v, kNumberBytes);
  }
  template <int T, int R, bool grouped>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    VF d[R], m[R];
    load_halves<R>(at, 0, d);
    load_halves<R>(at, kPanelRows, m);
    add_scaled<T, R, grouped>(at, d, s[0], acc);
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) acc[t][r] = vf_fma_at(m[r], at.extras(t) + 3, acc[t][r]);
    }
  }
};

// E2M1 in halves, plus 12.
template <int g>
FT_INLINE VI e2m1_bytes(VI v) {
  return nibble_bytes<g>(v, kE2m1Bytes);
}

template <class Order>
struct Mxfp4Ints : Mxfp4Words, Order {
  static constexpr int kOffset = 12;
  static constexpr float kIntUnit = 0.5f;
  template <int g>
  FT_INLINE VI group(VI v) {
    return e2m1_bytes<g>(v);
  }
  template <int T, int R, bool grouped>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    VF d[R];
    FT_UNROLL
    for (int r = 0; r < R; ++r)
      d[r] = e8m0_scale(vi_load_u8(at.scales + at.first_row + r * kLanes));
    add_scaled<T, R, grouped>(at, d, s[0], acc);
  }
};

template <bool divide>
struct Nvfp4Ints : Nvfp4Words<divide>, NibbleInts {
  static constexpr int kOffset = 12;
  static constexpr float kIntUnit = 0.5f;
  template <int g>
  FT_INLINE VI group(VI v) {
    return e2m1_bytes<g>(v);
  }
  template <int T, int R, bool grouped>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI* seen) {
    VF d[2][R];
    FT_UNROLL
    for (int half = 0; half < 2; ++half) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) {
        VI codes = vi_load_u8(at.scales + half * kPanelRows + at.first_row + r * kLanes);
        seen[r] = largest_code(seen[r], codes);
        d[half][r] = e4m3_scale(codes, kE4M3Unit);
      }
    }
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) {
        const VF both = vf_fma(d[1][r], s[1][t][r], vf_mul(d[0][r], s[0][t][r]));
        acc[t][r] =
            grouped ? vf_add(both, acc[t][r]) : vf_fma_at(both, at.extras(t) + 2, acc[t][r]);
      }
    }
  }
};

// Adds groups g.. of one word to the sums of upper and lower bytes. Each group reads its word again:
// what is kept over a group is spilled, and then read again with the wait for its store.
template <class W, int T, int R, int g>
FT_INLINE void add_groups(const uint8_t* p, const uint8_t* const* x, int64_t bytes, VI (*high)[R],
                          VI (*low)[R]) {
  VI w[R];
  FT_UNROLL
  for (int r = 0; r < R; ++r) w[r] = W::template group<g>(vi_load(p + r * kLanes * 4));
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    const uint8_t* at = x[t] + bytes + 4 * g;
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      if constexpr (W::kBytes == 2) high[t][r] = vi_dot_at(w[r], at, high[t][r]);
      low[t][r] = vi_dot_at(w[r], at + (W::kBytes - 1) * kChunk, low[t][r]);
    }
  }
  if constexpr (g + 1 < W::kGroups) {
    asm("" : "+r"(p));  // another address, as far as the compiler knows
    add_groups<W, T, R, g + 1>(p, x, bytes, high, low);
  }
}

// Words first .. last - 1 of a chunk; their sum, as floats.
template <class W, int T, int R>
FT_INLINE void sum_ints(const uint8_t* p, const ChunkAt& at, const uint8_t* const* x, int half,
                        int first, int last, VF (*s)[R]) {
  VI high[T][R], low[T][R];
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      high[t][r] = vi_set1(0);
      low[t][r] =
          W::kOffset == 0 ? vi_set1(0) : vf_as_i(vf_set1(at.extras(t)[half]));
    }
  }
  FT_UNROLL
  for (int w = first; w < last; ++w)
    add_groups<W, T, R, 0>(p + w * kWordBytes, x, 4 * W::kGroups * w, high, low);
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r)
      s[t][r] = vi_to_f(vi_add(vi_shl<8>(high[t][r]), low[t][r]));
  }
}

template <class W, int T, int R, bool grouped>
FT_INLINE void chunk_ints(const uint8_t* p, const ChunkAt& at, const uint8_t* const* x, int words,
                          VF (*s)[T][R], VF (*acc)[R], VI* seen) {
  if constexpr (W::kSplit) {
    constexpr int kHalf = kChunk / 2 / W::kWordElements;
    sum_ints<W, T, R>(p, at, x, 0, 0, kHalf, s[0]);
    if (words > kHalf) {
      sum_ints<W, T, R>(p, at, x, 1, kHalf, 2 * kHalf, s[1]);
    } else {
      clear<T, R>(s[1]);
    }
  } else {
    sum_ints<W, T, R>(p, at, x, 0, 0, kChunk / W::kWordElements, s[0]);
  }
  W::template finish<T, R, grouped>(at, s, acc, seen);
}

// As tile() of panel-inl.h.
template <class W, int T, int R>
FT_INLINE void int_tile(const PanelRun* run, int first_row, int first_token) {
  constexpr int64_t kChunkBytes = kChunk / W::kWordElements * kWordBytes;
  constexpr int64_t kGroupBytes = W::kScaleBytes + W::kJoined * kChunkBytes;
  const float* x[T];
  const uint8_t* bytes[T];  // of the chunk
  VF acc[T][R], s[2][T][R];
  VI seen[R];
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    x[t] = run->x[first_token + t];
    bytes[t] = (const uint8_t*)x[t];
  }
  clear<T, R>(acc);
  FT_UNROLL
  for (int r = 0; r < R; ++r) seen[r] = vi_set1(0);
  const int64_t cols = run->cols;
  const uint8_t* group = run->panel + W::header_bytes(cols);
  const int64_t ahead = first_row == 0 && first_token == 0 ? run->prefetch_bytes : 0;
  ChunkAt at{run->panel, group, first_row, 0, x, run->sums};
  for (; at.k + W::kJoined * kChunk <= cols; group += kGroupBytes) {
    if (ahead > 0) {
      for (int64_t line = 0; line < kGroupBytes; line += 64)
        __builtin_prefetch(group + ahead + line);
    }
    FT_UNROLL
    for (int c = 0; c < W::kJoined; ++c, at.k += kChunk) {
      at.scales = group + c * (W::kScaleBytes / W::kJoined);
      chunk_ints<W, T, R, false>(group + W::kScaleBytes + c * kChunkBytes + first_row * 4, at, bytes,
                          kChunk / W::kWordElements, s, acc, seen);
      FT_UNROLL
      for (int t = 0; t < T; ++t) bytes[t] += W::kBytes * kChunk;
    }
  }
  for (int c = 0; at.k < cols; ++c, at.k += kChunk) {  // a group that is filled up, half a chunk
    const int64_t left = cols - at.k < kChunk ? cols - at.k : kChunk;
    at.scales = group + c * (W::kScaleBytes / W::kJoined);
    chunk_ints<W, T, R, false>(group + W::kScaleBytes + c * kChunkBytes + first_row * 4, at, bytes,
                        (int)(left / W::kWordElements), s, acc, seen);
    FT_UNROLL
    for (int t = 0; t < T; ++t) bytes[t] += W::kBytes * kChunk;
  }
  W::template end<T, R>(run->panel, first_row, acc, seen);
  store_tile<T, R>(run, first_row, first_token, acc);
}

struct IntTile {
  template <class W, int T, int R>
  FT_INLINE void run(const PanelRun* run, int first_row, int first_token) {
    int_tile<W, T, R>(run, first_row, first_token);
  }
};

template <int T, int R>
FT_INLINE void clear_result(float* y) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) vf_store(y + t * kPanelRows + r * kLanes, vf_set1(0.0f));
  }
}

// Rows of whole groups. Results stay in memory until a group is summed: registers are scarce.
template <class W, int T, int R>
FT_INLINE void group_tile(const PanelRun* run, int first_row, int first_token) {
  constexpr int64_t kChunkBytes = kChunk / W::kWordElements * kWordBytes;
  constexpr int64_t kJoinedBytes = W::kScaleBytes + W::kJoined * kChunkBytes;
  const float* x[T];
  const uint8_t* bytes[T];  // of the chunk
  VI seen[R];
  float* y = run->y + first_token * kPanelRows + first_row;
  clear_result<T, R>(y);
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    x[t] = run->x[first_token + t];
    bytes[t] = (const uint8_t*)x[t];
  }
  FT_UNROLL
  for (int r = 0; r < R; ++r) seen[r] = vi_set1(0);
  const uint8_t* joined = run->panel + W::header_bytes(run->cols);
  const int64_t ahead = first_row == 0 && first_token == 0 ? run->prefetch_bytes : 0;
  ChunkAt at{run->panel, joined, first_row, 0, x, run->sums};
  while (at.k < run->cols) {
    VF block[T][R], s[2][T][R];
    clear<T, R>(block);
    for (int i = 0; i < kGroupChunks; i += W::kJoined, joined += kJoinedBytes) {
      if (ahead > 0) {
        for (int64_t line = 0; line < kJoinedBytes; line += 64)
          __builtin_prefetch(joined + ahead + line);
      }
      FT_UNROLL
      for (int c = 0; c < W::kJoined; ++c, at.k += kChunk) {
        at.scales = joined + c * (W::kScaleBytes / W::kJoined);
        chunk_ints<W, T, R, true>(joined + W::kScaleBytes + c * kChunkBytes + first_row * 4, at,
                                  bytes, kChunk / W::kWordElements, s, block, seen);
        FT_UNROLL
        for (int t = 0; t < T; ++t) bytes[t] += W::kBytes * kChunk;
      }
    }
    const int64_t extras = run->sums + (at.k - kGroupElements) / kChunk * kExtras;
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) {
        float* to = y + t * kPanelRows + r * kLanes;
        vf_store(to, vf_fma_at(block[t][r], x[t] + extras + 2, vf_load(to)));
      }
    }
  }
  VF acc[T][R];
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = vf_load(y + t * kPanelRows + r * kLanes);
  }
  W::template end<T, R>(run->panel, first_row, acc, seen);
  store_tile<T, R>(run, first_row, first_token, acc);
}

struct GroupTile {
  template <class W, int T, int R>
  FT_INLINE void run(const PanelRun* run, int first_row, int first_token) {
    group_tile<W, T, R>(run, first_row, first_token);
  }
};

template <class W>
void panel_ints(const PanelRun* run) {
  if (W::kBytes == 2 && run->cols % kGroupElements == 0) {
    over_tiles<GroupTile, W, 1, 2, 2>(run);
  } else {
    over_tiles<IntTile, W, 1, 2, 2>(run);
  }
}

// Which element stands at each place of a chunk.
template <class W>
struct Order {
  alignas(64) int32_t element[kChunk];
  constexpr Order() : element() {
    for (int place = 0; place < kChunk; ++place) element[place] = W::order(place);
  }
};

// One chunk in the format's order, zeros up to its end.
template <class W>
FT_INLINE void move_chunk(const float* x, int count, float* moved) {
  static constexpr Order<W> order;
  if (count == kChunk) {
    const VF first = vf_load(x), second = vf_load(x + kLanes);
    vf_store(moved, vf_pick(first, second, order.element));
    vf_store(moved + kLanes, vf_pick(first, second, order.element + kLanes));
    return;
  }
  for (int place = 0; place < kChunk; ++place) {
    const int element = W::order(place);
    moved[place] = element < count ? x[element] : 0.0f;
  }
}

// Extras but for the last.
template <class W>
FT_INLINE void store_extras(const int32_t* sums, float unit, float* extras) {
  const int32_t start[2] = {-W::kOffset * sums[0], -W::kOffset * sums[1]};
  memcpy(extras, start, sizeof start);
  extras[2] = unit * W::kIntUnit;
}

// May write where it reads: out = x.
template <class W>
void pack_ints(const float* x, int64_t cols, float* out) {
  alignas(64) float moved[kChunk];
  alignas(64) int32_t sums[2];
  for (int64_t k = 0; k < cols; k += kChunk) {
    move_chunk<W>(x + k, cols - k < kChunk ? (int)(cols - k) : kChunk, moved);
    const float unit = vi_store_bytes<W::kBytes>((uint8_t*)out + W::kBytes * k, moved, sums);
    if (!W::kSplit) sums[0] += sums[1];
    float* extras = out + cols + k / kChunk * kExtras;
    store_extras<W>(sums, unit, extras);
    extras[3] = unit * (float)(W::kSplit ? 0 : sums[0]);
  }
}

// The same with a unit for each group, where rows are whole groups.
template <class W>
void pack_int_groups(const float* x, int64_t cols, float* out) {
  if (cols % kGroupElements != 0) return pack_ints<W>(x, cols, out);
  alignas(64) float moved[kChunk];
  alignas(64) int32_t sums[2];
  float largest = 0;
  for (int64_t k = 0; k < cols; k += kChunk) {
    if (k % kGroupElements == 0) largest = vf_largest(x + k, kGroupChunks);
    move_chunk<W>(x + k, kChunk, moved);
    vi_store_chunk<2>((uint8_t*)out + 2 * k, moved, largest, sums);
    if (!W::kSplit) sums[0] += sums[1];
    float* extras = out + cols + k / kChunk * kExtras;
    store_extras<W>(sums, largest / 32512.0f, extras);
    extras[3] = (float)(W::kSplit ? 0 : sums[0]);
  }
}

}  // namespace
}  // namespace ft

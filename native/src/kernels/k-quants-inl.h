// q4_k, q5_k and q6_k on small integers, for targets that have them (see ints-inl.h).
//
// What belongs to a group of 256 elements is done once for the group: activations are integers in
// units of its largest, so sums of codes times activations are exact, are multiplied by the integer
// scales of the weights while they are integers, and become floats a segment of a group at a time
// (as much as surely fits into 32 bits). Float sums of segments are then multiplied by d and by the
// unit. The minima, eight bytes of a row, meet the eight sums of a token as one more product.
//
// A group of a packed row: chunk after chunk 32 upper bytes and 32 lower ones, or the same numbers
// as int16 for k-many-inl.h; where activations have 8 bits, 32 bytes for each chunk.
// In the extras of a group: the unit; the unit of the sums, their upper and lower bytes, the same
// as int16 (q4_k, q5_k); from place kHalfSums -32 times the sum of each half of a chunk, as int32
// (q6_k).
namespace ft {
namespace {

constexpr int kWholeSums = 6;
constexpr int kHalfSums = 16;

template <class W>
constexpr int64_t kRowGroupBytes = W::kBytes * kGroupElements;

// The largest integer of a group of activations: 13 bits with the sign of them fill segments of 64
// to 256 elements, while the float that a segment becomes costs as much as ten of its products.
template <class W>
constexpr int kKSteps = W::kBytes == 2 ? 8128 : kSteps<1>;

// Of a panel.
template <class W>
constexpr int64_t kKGroupBytes = W::kScaleBytes + W::kWords * kWordBytes;

// By n bits to the right, or to the left where n is negative.
template <int n>
FT_INLINE VI vi_move(VI v) {
  if constexpr (n > 0) return vi_shr<n>(v);
  if constexpr (n < 0) return vi_shl<-n>(v);
  return v;
}

// Byte c of every lane, codes of 6 bits.
template <int c>
FT_INLINE VI six_bits(VI v) {
  return vi_and(vi_shr<c * 8>(v), vi_set1(63));
}

template <int T, int R>
FT_INLINE void clear_ints(VI (*s)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) s[t][r] = vi_set1(0);
  }
}

template <class W, int T, int R>
FT_INLINE void add_k_word(VI code, int r, const uint8_t* const* x, int at, VI (*high)[R],
                          VI (*low)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    if constexpr (W::kBytes == 2) {
      high[t][r] = vi_dot_at(code, x[t] + at, high[t][r]);
      low[t][r] = vi_dot_at(code, x[t] + at + kChunk, low[t][r]);
    } else {
      low[t][r] = vi_dot_at(code, x[t] + at, low[t][r]);
    }
  }
}

// Part `i` of `parts` of the next group, while this one is computed: where words are not read in
// order the hardware sees no stream. All at once would hold up the loads behind. next: or null.
template <class W>
FT_INLINE void fetch_part(const uint8_t* next, int i, int parts) {
  if (next == nullptr) return;
  const uint8_t* end = next + kKGroupBytes<W> * (i + 1) / parts;
  for (const uint8_t* at = next + kKGroupBytes<W> * i / parts; at < end; at += 64)
    __builtin_prefetch(at);
}

// Scales and minima of a group as bytes, chunks 0 .. 3 and 4 .. 7 of every row.
template <int R>
struct GroupScales {
  VI scale[2][R], least[2][R];
};

// What q4_k and q5_k share.
struct AffineInts {
  static constexpr int kBytes = 2, kScaleBytes = KCodes::kScaleBytes;
  template <int R>
  using Scales = GroupScales<R>;

  template <int R>
  FT_INLINE void split_scales(const CodeGroup& group, GroupScales<R>& out) {
    const VI six = vi_set1(0x3f3f3f3f), top = vi_set1(0x30303030);
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      const VI scale = group_word(group, 0, r), least = group_word(group, 1, r);
      const VI low = group_word(group, 2, r);
      out.scale[0][r] = vi_and(scale, six);
      out.least[0][r] = vi_and(least, six);
      out.scale[1][r] = vi_or(low_nibbles(low), vi_and(vi_shr<2>(scale), top));
      out.least[1][r] = vi_or(low_nibbles(vi_shr<4>(low)), vi_and(vi_shr<2>(least), top));
    }
  }

  // Minima times the sums of the chunks.
  template <int T, int R>
  FT_INLINE void add_minima(const GroupScales<R>& scales, const float* const* extras,
                            VI (*minima)[R]) {
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) {
        const uint8_t* sums = (const uint8_t*)(extras[t] + 2);
        VI sum = vi_dot_at(scales.least[0][r], sums, vi_set1(0));
        sum = vi_shl<8>(vi_dot_at(scales.least[1][r], sums + 4, sum));
        sum = vi_dot_at(scales.least[0][r], sums + 8, sum);
        minima[t][r] = vi_dot_at(scales.least[1][r], sums + 12, sum);
      }
    }
  }

  // y += (d unit) block - (dmin unit of the sums) minima
  template <int T, int R>
  FT_INLINE void finish(const CodeGroup& group, const float* const* extras, VF (*block)[R],
                        VI (*minima)[R], float* y) {
    const uint16_t* halves = (const uint16_t*)group.scales;
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      const VF d = vf_load_half(halves + r * kLanes);
      const VF least = vf_sub(vf_set1(0.0f), vf_load_half(halves + kPanelRows + r * kLanes));
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        float* to = y + t * kPanelRows + r * kLanes;
        const VF sum = vf_fma(vf_mul_at(d, extras[t]), block[t][r], vf_load(to));
        vf_store(to, vf_fma(vf_mul_at(least, extras[t] + 1), vi_to_f(minima[t][r]), sum));
      }
    }
  }
};

struct Q4KInts : AffineInts {
  static constexpr int kWords = Q4KCodes::kWords, kFirstWord = 3;
  static constexpr bool kFetch = false;
  static constexpr int kSegment = 8;  // chunks of a segment: 15 * 63 * 8128 * 256 < 2^31
  static constexpr int kSegmentPairs = kSegment * kChunk / 2;
  // Codes of odd chunks stay where they are, at 16 times their value.
  template <int c>
  static constexpr int kCodeShift = c % 2 * 4;
  template <int c>
  FT_INLINE VI code(const CodeGroup&, VI v, int, int) {
    return vi_and(v, vi_set1((int32_t)(c % 2 == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u)));
  }
};

struct Q5KInts : AffineInts {
  static constexpr int kWords = Q5KCodes::kWords, kFirstWord = 11;
  static constexpr bool kFetch = true;  // words 3 .. 10 are read again for every pair of chunks
  static constexpr int kSegment = 4;    // 31 * 63 * 8128 * 128 < 2^31
  static constexpr int kSegmentPairs = kSegment * kChunk / 2;
  template <int c>
  static constexpr int kCodeShift = 0;
  template <int c>
  FT_INLINE VI code(const CodeGroup& group, VI v, int w, int r) {
    const VI bit = vi_move<c - 4>(group_word(group, 3 + w, r));
    return vi_or(low_nibbles(c % 2 == 0 ? v : vi_shr<4>(v)), vi_and(bit, vi_set1(0x10101010)));
  }
};

template <class W, int c>
FT_INLINE VI sum_of_bytes(VI high, VI low) {
  if constexpr (W::kBytes == 2) low = vi_add(vi_shl<8>(high), low);
  if constexpr (W::template kCodeShift<c> != 0) low = vi_sra<W::template kCodeShift<c>>(low);
  return low;
}

// Part i to its segment of so many parts, and that to the block where it is complete.
template <int parts, int i>
FT_INLINE void add_part(VI part, VI& segment, VF& block) {
  segment = i % parts == 0 ? part : vi_add(segment, part);
  asm("" : "+v"(segment));  // in this order: another one needs more registers than there are
  if constexpr (i + 1 == parts) block = vi_to_f(segment);
  if constexpr (i + 1 > parts && (i + 1) % parts == 0) block = vf_add(block, vi_to_f(segment));
}

// Sums of chunk c times its scale.
template <class W, int T, int R, int c>
FT_INLINE void end_k_chunk(const GroupScales<R>& scales, VI (*high)[R], VI (*low)[R],
                           VI (*segment)[R], VF (*block)[R]) {
  FT_UNROLL
  for (int r = 0; r < R; ++r) {
    const VI scale = six_bits<c % 4>(scales.scale[c / 4][r]);
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      const VI part = vi_mul(scale, sum_of_bytes<W, c>(high[t][r], low[t][r]));
      add_part<W::kSegment, c>(part, segment[t][r], block[t][r]);
    }
  }
}

// Chunks c .. c + N - 1 and those behind them. Two chunks share their words.
template <class W, int T, int R, int c, int N>
FT_INLINE void add_k_chunks(const CodeGroup& group, const GroupScales<R>& scales,
                            const uint8_t* const* x, const uint8_t* next, VI (*segment)[R],
                            VF (*block)[R]) {
  fetch_part<W>(next, c / N, kGroupChunks / N);
  VI high[N][T][R], low[N][T][R];
  FT_UNROLL
  for (int n = 0; n < N; ++n) {
    clear_ints<T, R>(high[n]);
    clear_ints<T, R>(low[n]);
  }
  constexpr int kChunkBytes = W::kBytes * kChunk;
  FT_UNROLL
  for (int w = 0; w < 8; ++w) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      const VI v = group_word(group, W::kFirstWord + c / 2 * 8 + w, r);
      add_k_word<W, T, R>(W::template code<c>(group, v, w, r), r, x, c * kChunkBytes + 4 * w,
                          high[0], low[0]);
      if constexpr (N == 2)
        add_k_word<W, T, R>(W::template code<c + 1>(group, v, w, r), r, x,
                            (c + 1) * kChunkBytes + 4 * w, high[1], low[1]);
    }
  }
  end_k_chunk<W, T, R, c>(scales, high[0], low[0], segment, block);
  if constexpr (N == 2) end_k_chunk<W, T, R, c + 1>(scales, high[1], low[1], segment, block);
  if constexpr (c + N < kGroupChunks)
    add_k_chunks<W, T, R, c + N, N>(group, scales, x, next, segment, block);
}

// A scale for each half of a chunk, int8; codes are 32 too large.
struct Q6KInts {
  static constexpr int kSegment = 4;  // halves of a chunk: 32 * 128 * 8128 * 64 < 2^31
  static constexpr int kSegmentPairs = kSegment * kChunk / 4;
  static constexpr int kBytes = 2, kScaleBytes = Q6KCodes::kScaleBytes, kWords = Q6KCodes::kWords;
  static constexpr bool kFetch = true;
  template <int c>
  static constexpr int kCodeShift = 0;
  template <int R>
  struct Scales {};
  template <int R>
  FT_INLINE void split_scales(const CodeGroup&, Scales<R>&) {}

  template <int c>
  FT_INLINE VI code(const CodeGroup& group, int w, int r) {
    constexpr int kHalf = c / 4, kQuarter = c % 4;
    const VI low = group_word(group, kHalf * 16 + kQuarter % 2 * 8 + w, r);
    const VI two = vi_move<2 * kQuarter - 4>(group_word(group, 32 + kHalf * 8 + w, r));
    return vi_or(low_nibbles(vi_move<kQuarter / 2 * 4>(low)), vi_and(two, vi_set1(0x30303030)));
  }
  // Of half h of chunk c.
  template <int c, int h>
  FT_INLINE VI scale(const CodeGroup& group, int r) {
    return vi_sra<24>(vi_shl<24 - 16 * (c % 2) - 8 * h>(group_word(group, 48 + c / 2, r)));
  }
  template <int T, int R>
  FT_INLINE void add_minima(const Scales<R>&, const float* const*, VI (*)[R]) {}
  template <int T, int R>
  FT_INLINE void finish(const CodeGroup& group, const float* const* extras, VF (*block)[R],
                        VI (*)[R], float* y) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      const VF d = vf_load_half((const uint16_t*)group.scales + r * kLanes);
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        float* to = y + t * kPanelRows + r * kLanes;
        vf_store(to, vf_fma(vf_mul_at(d, extras[t]), block[t][r], vf_load(to)));
      }
    }
  }
};

// Half i % 2 of chunk i / 2, and those behind it.
template <class W, int T, int R, int i>
FT_INLINE void add_k_halves(const CodeGroup& group, const uint8_t* const* x,
                            const float* const* extras, const uint8_t* next, VI (*segment)[R],
                            VF (*block)[R]) {
  constexpr int c = i / 2, h = i % 2;
  fetch_part<W>(next, i, 2 * kGroupChunks);
  VI high[T][R], low[T][R];
  clear_ints<T, R>(high);
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) low[t][r] = vf_as_i(vf_set1(extras[t][kHalfSums + i]));
  }
  FT_UNROLL
  for (int w = 4 * h; w < 4 * h + 4; ++w) {
    FT_UNROLL
    for (int r = 0; r < R; ++r)
      add_k_word<W, T, R>(W::template code<c>(group, w, r), r, x, c * W::kBytes * kChunk + 4 * w,
                          high, low);
  }
  FT_UNROLL
  for (int r = 0; r < R; ++r) {
    const VI scale = W::template scale<c, h>(group, r);
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      const VI part = vi_mul(scale, sum_of_bytes<W, c>(high[t][r], low[t][r]));
      add_part<W::kSegment, i>(part, segment[t][r], block[t][r]);
    }
  }
  if constexpr (i + 1 < 2 * kGroupChunks)
    add_k_halves<W, T, R, i + 1>(group, x, extras, next, segment, block);
}

template <class W, int T, int R>
FT_INLINE void k_tile(const PanelRun* run, int first_row, int first_token) {
  constexpr int64_t kGroupBytes = kKGroupBytes<W>;
  float* y = run->y + first_token * kPanelRows + first_row;
  clear_result<T, R>(y);
  const uint8_t* base = run->panel;
  const bool fetch = W::kFetch && first_row == 0 && first_token == 0;
  for (int64_t g = 0; g < run->cols / kGroupElements; ++g, base += kGroupBytes) {
    const uint8_t* next = fetch ? base + kGroupBytes : nullptr;
    const CodeGroup group{base + first_row * 2, base + W::kScaleBytes + first_row * 4};
    const uint8_t* x[T];
    const float* extras[T];
    VF block[T][R];
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      const float* row = run->x[first_token + t];
      x[t] = (const uint8_t*)row + g * kRowGroupBytes<W>;
      extras[t] = row + run->sums + g * kGroupChunks * kExtras;
    }
    VI segment[T][R];
    typename W::template Scales<R> scales;
    W::template split_scales<R>(group, scales);
    if constexpr (W::kScaleBytes == KCodes::kScaleBytes) {
      add_k_chunks<W, T, R, 0, T * R <= 4 ? 2 : 1>(group, scales, x, next, segment, block);
    } else {
      add_k_halves<W, T, R, 0>(group, x, extras, next, segment, block);
    }
    VI minima[T][R];
    W::template add_minima<T, R>(scales, extras, minima);
    W::template finish<T, R>(group, extras, block, minima, y);
  }
}

struct KTile {
  template <class W, int T, int R>
  FT_INLINE void run(const PanelRun* run, int first_row, int first_token) {
    k_tile<W, T, R>(run, first_row, first_token);
  }
};

template <class W>
void panel_k(const PanelRun* run) {
  over_tiles<KTile, W, 1, 2, 2>(run);
}

// The extras of a group whose chunks have these sums.
template <class W>
FT_INLINE void store_k_extras(float unit, const int32_t* sums, float* extras) {
  memset(extras, 0, 4 * kExtras * kGroupChunks);
  extras[0] = unit;
  if constexpr (W::kScaleBytes == KCodes::kScaleBytes) {
    uint8_t* bytes = (uint8_t*)(extras + 2);
    int16_t* both = (int16_t*)(extras + kWholeSums);
    extras[1] = unit * vi_shorten(sums, bytes, bytes + kGroupChunks, both);
  }
}

// May write where it reads: out = x.
template <class W>
void pack_k(const float* x, int64_t cols, float* out) {
  alignas(64) float values[kGroupElements];
  for (int64_t k = 0; k < cols; k += kGroupElements) {
    memcpy(values, x + k, sizeof values);
    const float largest = vf_largest(values, kGroupChunks);
    int32_t sums[kGroupChunks], starts[2 * kGroupChunks];
    uint8_t* to = (uint8_t*)out + k / kGroupElements * kRowGroupBytes<W>;
    for (int c = 0; c < kGroupChunks; ++c) {
      int32_t* halves = starts + 2 * c;
      const float* from = values + c * kChunk;
      vi_store_chunk<W::kBytes, kKSteps<W>>(to + c * W::kBytes * kChunk, from, largest, halves);
      sums[c] = halves[0] + halves[1];
      for (int h = 0; h < 2; ++h) halves[h] *= -32;
    }
    float* extras = out + cols + k / kChunk * kExtras;
    store_k_extras<W>(largest / (float)kKSteps<W>, sums, extras);
    if constexpr (W::kScaleBytes != KCodes::kScaleBytes)
      memcpy(extras + kHalfSums, starts, sizeof starts);
  }
}

// The same for k-many-inl.h.
template <class W>
void pack_k_many(const float* x, int64_t cols, float* out) {
  for (int64_t k = 0; k < cols; k += kGroupElements) {
    int32_t sums[kGroupChunks];
    uint8_t* to = (uint8_t*)out + k / kGroupElements * kRowGroupBytes<W>;
    const float largest = vi_store_pairs<kKSteps<W>>(to, x + k, sums);
    store_k_extras<W>(largest / (float)kKSteps<W>, sums, out + cols + k / kChunk * kExtras);
  }
}

}  // namespace
}  // namespace ft

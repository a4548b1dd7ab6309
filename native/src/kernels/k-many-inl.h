// K-quants against many tokens: a group of a panel meets the first tokens while it is unpacked into
// the first-level cache, as int16 codes times their integer scales, and from there the others, in
// tiles of 32 rows x 1 to 8. Segments, and what is done to their sums, are those of k-quants-inl.h,
// so are the results.
namespace ft {
namespace {

constexpr int kWideTokens = 8;  // of the widest tile
constexpr int kWideRegs = kPanelRows / kLanes;
constexpr int kChunkPairs = kChunk / 2;
constexpr int kPairBytes = 4;  // of two int16

// Products of a group, pairs of elements one behind the other: 32 rows x int16[2] each.
struct WideGroup {
  alignas(64) uint8_t pairs[kGroupElements / 2 * kWordBytes];
  alignas(64) uint8_t minima[kGroupChunks / 2 * kWordBytes];  // of pairs of chunks
};

FT_INLINE VI twice(VI low_halves) { return vi_or(low_halves, vi_shl<16>(low_halves)); }

template <int c>
FT_INLINE VI chunk_scale16(const GroupScales<kWideRegs>& scales, int r) {
  return twice(six_bits<c % 4>(scales.scale[c / 4][r]));
}

FT_INLINE void widen_minima(const GroupScales<kWideRegs>& scales, WideGroup& to) {
  FT_UNROLL
  for (int r = 0; r < kWideRegs; ++r) {
    FT_UNROLL
    for (int i = 0; i < kGroupChunks / 2; ++i) {
      const VI least = scales.least[i / 2][r], pair = i % 2 == 0 ? least : vi_shr<16>(least);
      const VI first = vi_and(pair, vi_set1(0xff)), second = vi_and(pair, vi_set1(0xff00));
      vi_store(to.minima + i * kWordBytes + r * kLanes * 4, vi_or(first, vi_shl<8>(second)));
    }
  }
}

// sum[t] += `pairs` products of pairs, weights those of 32 rows, N at a time.
template <int T, int N>
FT_INLINE void add_pairs_of(const uint8_t* weights, int64_t first, int64_t pairs,
                            const uint8_t* const* x, VI (*sum)[kWideRegs]) {
  for (int64_t p = first; p < first + pairs; p += N) {
    FT_UNROLL
    for (int i = 0; i < N; ++i) {
      VI w[kWideRegs];
      FT_UNROLL
      for (int r = 0; r < kWideRegs; ++r)
        w[r] = vi_load(weights + (p + i) * kWordBytes + r * kLanes * 4);
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        FT_UNROLL
        for (int r = 0; r < kWideRegs; ++r)
          sum[t][r] = vi_dot16_at(w[r], x[t] + 4 * p + 4 * i, sum[t][r]);
      }
    }
  }
}

// What is fetched while a tile is computed, a part with each kFetchPairs.
struct Ahead {
  const uint8_t* at;
  int64_t part;
};

constexpr int kFetchPairs = 32;

FT_INLINE void fetch(Ahead& ahead) {
  for (const uint8_t* end = ahead.at + ahead.part; ahead.at < end; ahead.at += 64)
    __builtin_prefetch(ahead.at);
}

// The sum of a segment to that of the group; then the next one starts.
template <int T>
FT_INLINE void end_segment(bool first, VI (*sum)[kWideRegs], VF (*block)[kWideRegs]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < kWideRegs; ++r) {
      const VF part = vi_to_f(sum[t][r]);
      block[t][r] = first ? part : vf_add(block[t][r], part);
      sum[t][r] = vi_set1(0);
    }
  }
}

// block[t] = the sum over the segments of a group, each as a float.
template <class W, int T>
FT_INLINE void wide_products(const WideGroup& group, const uint8_t* const* x, Ahead ahead,
                             VF (*block)[kWideRegs]) {
  VI sum[T][kWideRegs];
  clear_ints<T, kWideRegs>(sum);
  FT_UNROLL
  for (int s = 0; s < kGroupElements / 2; s += W::kSegmentPairs) {
    for (int first = s; first < s + W::kSegmentPairs; first += kFetchPairs) {
      fetch(ahead);
      add_pairs_of<T, 4>(group.pairs, first, kFetchPairs, x, sum);
    }
    end_segment<T>(s == 0, sum, block);
  }
}

// Keeps N pairs of the rows of vector r, the first of them pair p, and adds what they make with the
// tokens: the stores and what comes before them cost nothing beside the products.
template <int T, int N>
FT_INLINE void keep_and_add(const VI* pair, const int* p, int r, const uint8_t* const* x,
                            WideGroup& to, VI (*sum)[kWideRegs]) {
  FT_UNROLL
  for (int i = 0; i < N; ++i) vi_store(to.pairs + p[i] * kWordBytes + r * kLanes * 4, pair[i]);
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int i = 0; i < N; ++i)
      sum[t][r] = vi_dot16_at(pair[i], x[t] + kPairBytes * p[i], sum[t][r]);
  }
}

// Chunks c and c + 1 of q4_k and q5_k, which share their words, and those behind them.
template <class W, int T, int c>
FT_INLINE void first_chunks(const CodeGroup& group, const GroupScales<kWideRegs>& scales,
                            const uint8_t* const* x, Ahead ahead, WideGroup& to,
                            VI (*sum)[kWideRegs], VF (*block)[kWideRegs]) {
  const VI low = vi_set1(0x000f000f), fifth = vi_set1(0x00100010);
  fetch(ahead);
  FT_UNROLL
  for (int r = 0; r < kWideRegs; ++r) {
    const VI first = chunk_scale16<c>(scales, r), second = chunk_scale16<c + 1>(scales, r);
    for (int w = 0; w < 8; ++w) {
      const VI v = group_word(group, W::kFirstWord + c / 2 * 8 + w, r);
      VI pair[4] = {vi_and(v, low), vi_and(vi_shr16<8>(v), low), vi_and(vi_shr16<4>(v), low),
                    vi_shr16<12>(v)};
      if constexpr (W::kFirstWord > 3) {  // q5_k
        const VI bits = group_word(group, 3 + w, r);
        pair[0] = vi_or(pair[0], vi_and(vi_move<c - 4>(bits), fifth));
        pair[1] = vi_or(pair[1], vi_and(vi_move<c + 4>(bits), fifth));
        pair[2] = vi_or(pair[2], vi_and(vi_move<c - 3>(bits), fifth));
        pair[3] = vi_or(pair[3], vi_and(vi_move<c + 5>(bits), fifth));
      }
      FT_UNROLL
      for (int i = 0; i < 4; ++i) pair[i] = vi_mul16(pair[i], i < 2 ? first : second);
      const int p = c * kChunkPairs + 2 * w, next = p + kChunkPairs;
      const int places[4] = {p, p + 1, next, next + 1};
      keep_and_add<T, 4>(pair, places, r, x, to, sum);
    }
  }
  if constexpr ((c + 2) % W::kSegment == 0) end_segment<T>(c < W::kSegment, sum, block);
  if constexpr (c + 2 < kGroupChunks)
    first_chunks<W, T, c + 2>(group, scales, x, ahead, to, sum, block);
}

// Half i % 2 of chunk i / 2 of q6_k, and those behind it.
template <class W, int T, int i>
FT_INLINE void first_halves(const CodeGroup& group, const uint8_t* const* x, Ahead ahead,
                            WideGroup& to, VI (*sum)[kWideRegs], VF (*block)[kWideRegs]) {
  constexpr int c = i / 2, h = i % 2;
  const VI byte = vi_set1(0x00ff00ff), middle = vi_set1(0x00200020);
  if constexpr (i % 4 == 0) fetch(ahead);
  FT_UNROLL
  for (int r = 0; r < kWideRegs; ++r) {
    const VI scale = twice(vi_and(W::template scale<c, h>(group, r), vi_set1(0xffff)));
    for (int w = 4 * h; w < 4 * h + 4; ++w) {
      const VI v = W::template code<c>(group, w, r);
      const VI pair[2] = {vi_mul16(vi_sub16(vi_and(v, byte), middle), scale),
                          vi_mul16(vi_sub16(vi_shr16<8>(v), middle), scale)};
      const int places[2] = {c * kChunkPairs + 2 * w, c * kChunkPairs + 2 * w + 1};
      keep_and_add<T, 2>(pair, places, r, x, to, sum);
    }
  }
  if constexpr ((i + 1) % W::kSegment == 0) end_segment<T>(i < W::kSegment, sum, block);
  if constexpr (i + 1 < 2 * kGroupChunks)
    first_halves<W, T, i + 1>(group, x, ahead, to, sum, block);
}

// block[t] = the sum over the segments of a group, each as a float; the group is kept in `to`.
template <class W, int T>
FT_INLINE void first_products(const CodeGroup& group, const uint8_t* const* x, Ahead ahead,
                              WideGroup& to, VF (*block)[kWideRegs]) {
  VI sum[T][kWideRegs];
  clear_ints<T, kWideRegs>(sum);
  if constexpr (W::kScaleBytes == KCodes::kScaleBytes) {
    GroupScales<kWideRegs> scales;
    W::template split_scales<kWideRegs>(group, scales);
    widen_minima(scales, to);
    first_chunks<W, T, 0>(group, scales, x, ahead, to, sum, block);
  } else {
    first_halves<W, T, 0>(group, x, ahead, to, sum, block);
  }
}

// A group against tokens first_token .. first_token + T - 1.
template <class W, int T, bool first>
__attribute__((noinline)) void wide_tile(const PanelRun* run, int64_t g, int first_token,
                                         const CodeGroup& group, WideGroup& wide, Ahead ahead) {
  constexpr bool kHasMinima = W::kScaleBytes == KCodes::kScaleBytes;
  const uint8_t *x[T], *sums[T];
  const float* extras[T];
  VF block[T][kWideRegs];
  for (int t = 0; t < T; ++t) {
    const float* row = run->x[first_token + t];
    x[t] = (const uint8_t*)row + g * kRowGroupBytes<W>;
    extras[t] = row + run->sums + g * kGroupChunks * kExtras;
    sums[t] = (const uint8_t*)(extras[t] + kWholeSums);
  }
  float* y = run->y + first_token * kPanelRows;
  if (g == 0) clear_result<T, kWideRegs>(y);
  if constexpr (first) {
    first_products<W, T>(group, x, ahead, wide, block);
  } else {
    wide_products<W, T>(wide, x, ahead, block);
  }
  VI minima[T][kWideRegs];
  if constexpr (kHasMinima) {
    clear_ints<T, kWideRegs>(minima);
    add_pairs_of<T, 4>(wide.minima, 0, kGroupChunks / 2, sums, minima);
  }
  W::template finish<T, kWideRegs>(group, extras, block, minima, y);
}

template <class W, int T>
FT_INLINE void wide_tile_of(int count, const PanelRun* run, int64_t g, int first_token,
                            const CodeGroup& group, WideGroup& wide, Ahead ahead) {
  if (count == T) {
    if (first_token == 0) return wide_tile<W, T, true>(run, g, 0, group, wide, ahead);
    return wide_tile<W, T, false>(run, g, first_token, group, wide, ahead);
  }
  if constexpr (T > 1) wide_tile_of<W, T - 1>(count, run, g, first_token, group, wide, ahead);
}

// Rows as pack_k_many makes them. Tiles differ by one token at most; each fetches a part of the
// next group.
template <class W>
void panel_k_many(const PanelRun* run) {
  constexpr int kFetches = kGroupElements / 2 / kFetchPairs;
  const int tiles = (run->tokens + kWideTokens - 1) / kWideTokens;
  const int64_t share = kKGroupBytes<W> / tiles, part = share / kFetches;
  WideGroup wide;
  const uint8_t* base = run->panel;
  for (int64_t g = 0; g < run->cols / kGroupElements; ++g, base += kKGroupBytes<W>) {
    const CodeGroup group{base, base + W::kScaleBytes};
    for (int i = 0, first = 0; i < tiles; ++i) {
      const Ahead ahead{base + kKGroupBytes<W> + i * share, part};
      const int count = (run->tokens - first + tiles - i - 1) / (tiles - i);
      wide_tile_of<W, kWideTokens>(count, run, g, first, group, wide, ahead);
      first += count;
    }
  }
}

}  // namespace
}  // namespace ft

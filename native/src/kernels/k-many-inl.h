// K-quants against many tokens: a group of a panel is unpacked once, into the first-level cache, as
// int16 codes times their integer scales, and then meets the tokens in tiles of 32 rows x 1 to 8.
// Segments, and what is done to their sums, are those of k-quants-inl.h, so are the results.
namespace ft {
namespace {

constexpr int kWideTokens = 8;  // of the widest tile
constexpr int kWideRegs = kPanelRows / kLanes;
constexpr int kChunkPairs = kChunk / 2;

// Products of a group, pairs of elements one behind the other: 32 rows x int16[2] each.
struct WideGroup {
  alignas(64) uint8_t pairs[kGroupElements / 2 * kWordBytes];
  alignas(64) uint8_t minima[kGroupChunks / 2 * kWordBytes];  // of pairs of chunks
};

// Pairs 2w (elements 0 and 2 of a word of chunk c) and 2w + 1 (1 and 3) for R vectors of rows.
FT_INLINE void store_pairs(WideGroup& to, int c, int w, int r, VI even, VI odd, VI scale) {
  uint8_t* at = to.pairs + (c * kChunkPairs + 2 * w) * kWordBytes + r * kLanes * 4;
  vi_store(at, vi_mul16(even, scale));
  vi_store(at + kWordBytes, vi_mul16(odd, scale));
}

FT_INLINE VI twice(VI low_halves) { return vi_or(low_halves, vi_shl<16>(low_halves)); }

template <int c>
FT_INLINE VI chunk_scale16(const GroupScales<kWideRegs>& scales, int r) {
  return twice(six_bits<c % 4>(scales.scale[c / 4][r]));
}

// Chunks c and c + 1 and those behind them.
template <class W, int c>
FT_INLINE void widen_chunks(const CodeGroup& group, const GroupScales<kWideRegs>& scales,
                            WideGroup& to) {
  const VI low = vi_set1(0x000f000f), fifth = vi_set1(0x00100010);
  FT_UNROLL
  for (int r = 0; r < kWideRegs; ++r) {
    const VI first = chunk_scale16<c>(scales, r), second = chunk_scale16<c + 1>(scales, r);
    for (int w = 0; w < 8; ++w) {
      const VI v = group_word(group, W::kFirstWord + c / 2 * 8 + w, r);
      VI code[4] = {vi_and(v, low), vi_and(vi_shr16<8>(v), low), vi_and(vi_shr16<4>(v), low),
                    vi_shr16<12>(v)};
      if constexpr (W::kFirstWord > 3) {  // q5_k
        const VI bits = group_word(group, 3 + w, r);
        code[0] = vi_or(code[0], vi_and(vi_move<c - 4>(bits), fifth));
        code[1] = vi_or(code[1], vi_and(vi_move<c + 4>(bits), fifth));
        code[2] = vi_or(code[2], vi_and(vi_move<c - 3>(bits), fifth));
        code[3] = vi_or(code[3], vi_and(vi_move<c + 5>(bits), fifth));
      }
      store_pairs(to, c, w, r, code[0], code[1], first);
      store_pairs(to, c + 1, w, r, code[2], code[3], second);
    }
  }
  if constexpr (c + 2 < kGroupChunks) widen_chunks<W, c + 2>(group, scales, to);
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

template <class W, int i>
FT_INLINE void widen_halves(const CodeGroup& group, WideGroup& to) {
  constexpr int c = i / 2, h = i % 2;
  const VI byte = vi_set1(0x00ff00ff), middle = vi_set1(0x00200020);
  FT_UNROLL
  for (int r = 0; r < kWideRegs; ++r) {
    const VI scale = vi_and(W::template scale<c, h>(group, r), vi_set1(0xffff));
    for (int w = 4 * h; w < 4 * h + 4; ++w) {
      const VI v = W::template code<c>(group, w, r);
      store_pairs(to, c, w, r, vi_sub16(vi_and(v, byte), middle), vi_sub16(vi_shr16<8>(v), middle),
                  twice(scale));
    }
  }
  if constexpr (i + 1 < 2 * kGroupChunks) widen_halves<W, i + 1>(group, to);
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

// block[t] = the sum over the segments of a group, each as a float.
template <class W, int T>
FT_INLINE void wide_products(const WideGroup& group, const uint8_t* const* x, Ahead ahead,
                             VF (*block)[kWideRegs]) {
  FT_UNROLL
  for (int s = 0; s < kGroupElements / 2; s += W::kSegmentPairs) {
    VI sum[T][kWideRegs];
    clear_ints<T, kWideRegs>(sum);
    for (int first = s; first < s + W::kSegmentPairs; first += kFetchPairs) {
      fetch(ahead);
      add_pairs_of<T, 4>(group.pairs, first, kFetchPairs, x, sum);
    }
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < kWideRegs; ++r) {
        const VF part = vi_to_f(sum[t][r]);
        block[t][r] = s == 0 ? part : vf_add(block[t][r], part);
      }
    }
  }
}

template <class W>
using WideScales = typename W::template Scales<kWideRegs>;

// A group against tokens first_token .. first_token + T - 1.
template <class W, int T>
__attribute__((noinline)) void wide_tile(const PanelRun* run, int64_t g, int first_token,
                                         const CodeGroup& group, const WideGroup& wide,
                                         Ahead ahead) {
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
  wide_products<W, T>(wide, x, ahead, block);
  VI minima[T][kWideRegs];
  if constexpr (kHasMinima) {
    clear_ints<T, kWideRegs>(minima);
    add_pairs_of<T, 4>(wide.minima, 0, kGroupChunks / 2, sums, minima);
  }
  W::template finish<T, kWideRegs>(group, extras, block, minima, y);
}

template <class W>
FT_INLINE void wide_tile_of(int count, const PanelRun* run, int64_t g, int first_token,
                            const CodeGroup& group, const WideGroup& wide, Ahead ahead) {
  switch (count) {
    case 8:
      return wide_tile<W, 8>(run, g, first_token, group, wide, ahead);
    case 7:
      return wide_tile<W, 7>(run, g, first_token, group, wide, ahead);
    case 6:
      return wide_tile<W, 6>(run, g, first_token, group, wide, ahead);
    case 5:
      return wide_tile<W, 5>(run, g, first_token, group, wide, ahead);
    case 4:
      return wide_tile<W, 4>(run, g, first_token, group, wide, ahead);
    case 3:
      return wide_tile<W, 3>(run, g, first_token, group, wide, ahead);
    case 2:
      return wide_tile<W, 2>(run, g, first_token, group, wide, ahead);
    default:
      return wide_tile<W, 1>(run, g, first_token, group, wide, ahead);
  }
}

// All tokens in tiles of up to 8, of sizes that differ by one at most. Each fetches a part of the
// next group.
template <class W>
FT_INLINE void wide_tiles(const PanelRun* run, int64_t g, const uint8_t* base,
                          const WideGroup& wide) {
  const CodeGroup group{base, base + W::kScaleBytes};
  const int tiles = (run->tokens + kWideTokens - 1) / kWideTokens;
  const int64_t share = kKGroupBytes<W> / tiles, part = share * kFetchPairs * 2 / kGroupElements;
  int first = 0;
  for (int i = 0; i < tiles; ++i) {
    const Ahead ahead{base + kKGroupBytes<W> + i * share, part};
    const int count = (run->tokens - first + tiles - i - 1) / (tiles - i);
    wide_tile_of<W>(count, run, g, first, group, wide, ahead);
    first += count;
  }
}

template <class W>
__attribute__((noinline)) void widen(const CodeGroup& group, WideGroup& wide) {
  WideScales<W> scales;
  W::template split_scales<kWideRegs>(group, scales);
  if constexpr (W::kScaleBytes == KCodes::kScaleBytes) {
    widen_chunks<W, 0>(group, scales, wide);
    widen_minima(scales, wide);
  } else {
    widen_halves<W, 0>(group, wide);
  }
}

// Rows as pack_k<W, true> makes them.
template <class W>
void panel_k_many(const PanelRun* run) {
  WideGroup wide;
  const uint8_t* base = run->panel;
  for (int64_t g = 0; g < run->cols / kGroupElements; ++g, base += kKGroupBytes<W>) {
    widen<W>(CodeGroup{base, base + W::kScaleBytes}, wide);
    wide_tiles<W>(run, g, base, wide);
  }
}

}  // namespace
}  // namespace ft

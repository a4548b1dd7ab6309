// Panel x token tiles: y[t, r] = sum_k w[r, k] * x[t, k] for the 32 rows of a panel.
//
// Lanes are rows, so there is no horizontal sum. The order of additions of one (row, token) is the
// same in every tile: per chunk of 32 elements (panel order) one running sum over each half, added,
// scaled, added to the accumulator (formats with a scale per half scale and add each half).
namespace ft {
namespace {

// Elements e.. of N words, word by word in turn, into N sums; the words are D words apart.
template <class W, int T, int R, int N, int D, int e>
FT_INLINE void add_elements(const VI (*v)[R], const float* const* x, int64_t k, VF (*s)[T][R]) {
  FT_UNROLL
  for (int n = 0; n < N; ++n) {
    VF w[R];
    FT_UNROLL
    for (int r = 0; r < R; ++r) w[r] = W::template element<e>(v[n][r]);
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r)
        s[n][t][r] = vf_fma_at(w[r], x[t] + k + n * D * W::kWordElements + e, s[n][t][r]);
    }
  }
  if constexpr (e + 1 < W::kWordElements) add_elements<W, T, R, N, D, e + 1>(v, x, k, s);
}

template <class W, int T, int R, int N, int D>
FT_INLINE void add_words(const uint8_t* p, const float* const* x, int64_t k, VF (*s)[T][R],
                         VI* seen) {
  VI v[N][R];
  FT_UNROLL
  for (int n = 0; n < N; ++n) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      v[n][r] = vi_load(p + n * D * kWordBytes + r * kLanes * 4);
      if constexpr (W::kWatch) seen[r] = W::watch(seen[r], v[n][r]);
    }
  }
  add_elements<W, T, R, N, D, 0>(v, x, k, s);
}

template <int T, int R>
FT_INLINE void clear(VF (*s)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) s[t][r] = vf_set1(0.0f);
  }
}

// s[0] += s[1], unless the halves are scaled apart.
template <class W, int T, int R>
FT_INLINE void join_halves(VF (*s)[T][R]) {
  if constexpr (!W::kSplit) add_all<T, R>(s[1], s[0]);
}

// The sums of the two halves of a chunk, s[0] and s[1], joined.
//
// Narrow tiles of 4-bit formats take a word of each half in turn: two independent chains of
// additions fill the pipes better (q4_1, one token: 18.4 -> 19.3 GB/s on Zen 4). Wider formats must
// read their bytes in order instead: out of order, bf16 from memory falls from 28 to 19 GB/s.
template <class W, int T, int R>
FT_INLINE void sum_chunk(const uint8_t* p, const float* const* x, int64_t k, VF (*s)[T][R],
                         VI* seen) {
  constexpr int kHalfWords = kChunk / 2 / W::kWordElements;
  clear<T, R>(s[0]);
#if defined(FT_HAVE_DOTS)
  if constexpr (W::kDots) {  // one running sum, or one for each half where halves have scales
    if constexpr (W::kSplit) clear<T, R>(s[1]);
    FT_UNROLL
    for (int w = 0; w < 2 * kHalfWords; ++w)
      add_dots<W, T, R>(p + w * kWordBytes, x, k + w * W::kWordElements,
                        W::kSplit && w >= kHalfWords ? s[1] : s[0], seen);
    return;
  }
#endif
  clear<T, R>(s[1]);
  if constexpr (W::kWordElements == 8 && T * R <= 4) {
    for (int w = 0; w < kHalfWords; ++w)
      add_words<W, T, R, 2, kHalfWords>(p + w * kWordBytes, x, k + w * W::kWordElements, s, seen);
  } else {
    FT_UNROLL
    for (int w = 0; w < kHalfWords; ++w)
      add_words<W, T, R, 1, 1>(p + w * kWordBytes, x, k + w * W::kWordElements, s, seen);
    FT_UNROLL
    for (int w = kHalfWords; w < 2 * kHalfWords; ++w)
      add_words<W, T, R, 1, 1>(p + w * kWordBytes, x, k + w * W::kWordElements, s + 1, seen);
  }
  join_halves<W, T, R>(s);
}

// The last words of a row that ends inside a chunk.
template <class W, int T, int R>
FT_INLINE void sum_tail(const uint8_t* p, const float* const* x, int64_t k, int64_t cols,
                        VF (*s)[T][R], VI* seen) {
  clear<T, R>(s[0]);
  clear<T, R>(s[1]);
#if defined(FT_HAVE_DOTS)
  if constexpr (W::kDots) {
    for (int64_t middle = k + kChunk / 2; k < cols; k += W::kWordElements, p += kWordBytes)
      add_dots<W, T, R>(p, x, k, W::kSplit && k >= middle ? s[1] : s[0], seen);
    return;
  }
#endif
  const int64_t middle = k + kChunk / 2;
  for (; k < cols; k += W::kWordElements, p += kWordBytes)
    add_words<W, T, R, 1, 1>(p, x, k, k < middle ? s : s + 1, seen);
  join_halves<W, T, R>(s);
}

template <int T, int R>
FT_INLINE void store_tile(const PanelRun* run, int first_row, int first_token, VF (&acc)[T][R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r)
      vf_store(run->y + (first_token + t) * kPanelRows + first_row + r * kLanes, acc[t][r]);
  }
}

template <class Tile, class W, int T, int R>
__attribute__((noinline)) void tile_rows(const PanelRun* run, int first_token) {
  for (int row = 0; row < kPanelRows; row += R * kLanes)
    Tile::template run<W, T, R>(run, row, first_token);
}

// All tokens in tiles of 8, 4, 2 and 1, with R8, R, R and R1 registers of rows at a time.
template <class Tile, class W, int R8, int R, int R1>
void over_tiles(const PanelRun* run) {
  int t = 0;
  const int n = run->tokens;
  if constexpr (kTileTokens >= 8)
    for (; t + 8 <= n; t += 8) tile_rows<Tile, W, 8, R8>(run, t);
  if constexpr (kTileTokens >= 4)
    for (; t + 4 <= n; t += 4) tile_rows<Tile, W, 4, R>(run, t);
  for (; t + 2 <= n; t += 2) tile_rows<Tile, W, 2, R>(run, t);
  if (t < n) tile_rows<Tile, W, 1, R1>(run, t);
}

// Rows first_row .. first_row + R * kLanes - 1 of the panel against T tokens.
template <class W, int T, int R>
FT_INLINE void tile(const PanelRun* run, int first_row, int first_token) {
  constexpr int64_t kChunkBytes = kChunk / W::kWordElements * kWordBytes;
  constexpr int64_t kGroupBytes = W::kScaleBytes + W::kJoined * kChunkBytes;
  const float* x[T];
  VF acc[T][R], s[2][T][R];
  VI seen[R];
  FT_UNROLL
  for (int t = 0; t < T; ++t) x[t] = run->x[first_token + t];
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
      const uint8_t* words = group + W::kScaleBytes + c * kChunkBytes;
      sum_chunk<W, T, R>(words + first_row * 4, x, at.k, s, seen);
      at.scales = group + c * (W::kScaleBytes / W::kJoined);
      W::template finish<T, R>(at, s, acc, seen);
    }
  }
  at.scales = group;
  const uint8_t* words = group + W::kScaleBytes + first_row * 4;
  if constexpr (W::kJoined > 1) {  // a group that is filled up
    for (; at.k < cols; at.k += kChunk, words += kChunkBytes) {
      sum_chunk<W, T, R>(words, x, at.k, s, seen);
      W::template finish<T, R>(at, s, acc, seen);
      at.scales += W::kScaleBytes / W::kJoined;
    }
  }
  if constexpr (W::kTail) {
    if (at.k < cols) {
      sum_tail<W, T, R>(words, x, at.k, cols, s, seen);
      W::template finish<T, R>(at, s, acc, seen);
    }
  }
  W::template end<T, R>(run->panel, first_row, acc, seen);
  store_tile<T, R>(run, first_row, first_token, acc);
}

struct PanelTile {
  template <class W, int T, int R>
  FT_INLINE void run(const PanelRun* run, int first_row, int first_token) {
    tile<W, T, R>(run, first_row, first_token);
  }
};

template <class W>
void panel(const PanelRun* run) {
  over_tiles<PanelTile, W, kTileRegs, kTileRegs, kTileRegs1>(run);
}

}  // namespace
}  // namespace ft

// Panel x token tiles: y[t, r] = sum_k w[r, k] * x[t, k] for the 32 rows of a panel.
//
// Lanes are rows, so there is no horizontal sum. The order of additions of one (row, token) is the
// same in every tile: per chunk of 32 elements (panel order) one running sum over each half, added,
// scaled, added to the accumulator. Formats of 4 bits keep the nibbles where they
// are (value << 4j) and expect x permuted to panel order and multiplied by 2^-4j, both exact.
namespace ft {
namespace {

constexpr int kWordBytes = kPanelRows * 4;  // one word of all rows

// A format: element<e>(v) is element e of the words v as floats, up to a factor that x or finish()
// takes back; finish() applies the scales of a chunk.
struct F32Words {
  static constexpr bool kPlain = true;
  static constexpr int kScaleBytes = 0, kWordElements = 1;
  template <int e>
  FT_INLINE VF element(VI v) {
    return vi_as_f(v);
  }
};

struct Bf16Words {
  static constexpr bool kPlain = true;
  static constexpr int kScaleBytes = 0, kWordElements = 2;
  template <int e>
  FT_INLINE VF element(VI v) {
    if constexpr (e == 0) return vi_as_f(vi_shl<16>(v));
    return vi_as_f(vi_and(v, vi_set1((int32_t)0xffff0000)));
  }
};

struct F16Words {
  static constexpr bool kPlain = true;
  static constexpr int kScaleBytes = 0, kWordElements = 2;
  template <int e>
  FT_INLINE VF element(VI v) {
    if constexpr (e == 0) return vi_low_half(v);
    return vi_low_half(vi_shr<16>(v));
  }
};

struct Q8Words {
  static constexpr bool kPlain = false;
  static constexpr int kScaleBytes = 64, kWordElements = 4;
  // Bytes go to the top of the word (q * 2^24, exact as float); finish() takes the 2^24 back.
  template <int e>
  FT_INLINE VF element(VI v) {
    const VI top = vi_set1((int32_t)0xff000000);
    if constexpr (e == 0) return vi_to_f(vi_shl<24>(v));
    if constexpr (e == 3) return vi_to_f(vi_and(v, top));
    return vi_to_f(vi_and(vi_shl<24 - 8 * (e & 3)>(v), top));
  }
  template <int T, int R>
  FT_INLINE void finish(const uint8_t* scales, const float* const*, int64_t, VF (*s)[R],
                        VF (*acc)[R]) {
    const VF unit = vf_set1(1.0f / 16777216.0f);
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VF d = vf_mul(vf_load_half((const uint16_t*)scales + r * kLanes), unit);
      FT_UNROLL
      for (int t = 0; t < T; ++t) acc[t][r] = vf_fma(d, s[t][r], acc[t][r]);
    }
  }
};

struct Q4Words {
  static constexpr bool kPlain = false;
  static constexpr int kWordElements = 8;
  template <int e>
  FT_INLINE VF element(VI v) {
    if constexpr (e >= 4) v = vi_shr<16>(v);
    if constexpr (e % 4 == 0) return vi_low_nibble(v);
    return vi_to_f(vi_and(v, vi_set1(15 << (4 * (e % 4)))));
  }
};

struct Q40Words : Q4Words {
  static constexpr int kScaleBytes = 64;
  template <int T, int R>
  FT_INLINE void finish(const uint8_t* scales, const float* const* x, int64_t sum, VF (*s)[R],
                        VF (*acc)[R]) {
    const VF zero_point = vf_set1(-8.0f);
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VF d = vf_load_half((const uint16_t*)scales + r * kLanes);
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        VF centred = vf_fma_at(zero_point, x[t] + sum, s[t][r]);
        acc[t][r] = vf_fma(d, centred, acc[t][r]);
      }
    }
  }
};

struct Q41Words : Q4Words {
  static constexpr int kScaleBytes = 128;
  template <int T, int R>
  FT_INLINE void finish(const uint8_t* scales, const float* const* x, int64_t sum, VF (*s)[R],
                        VF (*acc)[R]) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VF d = vf_load_half((const uint16_t*)scales + r * kLanes);
      VF m = vf_load_half((const uint16_t*)scales + kPanelRows + r * kLanes);
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        acc[t][r] = vf_fma(d, s[t][r], acc[t][r]);
        acc[t][r] = vf_fma_at(m, x[t] + sum, acc[t][r]);
      }
    }
  }
};

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
FT_INLINE void add_words(const uint8_t* p, const float* const* x, int64_t k, VF (*s)[T][R]) {
  VI v[N][R];
  FT_UNROLL
  for (int n = 0; n < N; ++n) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) v[n][r] = vi_load(p + n * D * kWordBytes + r * kLanes * 4);
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

// The sums of the two halves of a chunk, s[0] and s[1], then s[0] += s[1].
//
// Narrow tiles of 4-bit formats take a word of each half in turn: two independent chains of
// additions fill the pipes better (q4_1, one token: 18.4 -> 19.3 GB/s on Zen 4). Wider formats must
// read their bytes in order instead: out of order, bf16 from memory falls from 28 to 19 GB/s.
template <class W, int T, int R>
FT_INLINE void sum_chunk(const uint8_t* p, const float* const* x, int64_t k, VF (*s)[T][R]) {
  constexpr int kHalfWords = kChunk / 2 / W::kWordElements;
  clear<T, R>(s[0]);
  clear<T, R>(s[1]);
  if constexpr (W::kWordElements == 8 && T * R <= 4) {
    for (int w = 0; w < kHalfWords; ++w)
      add_words<W, T, R, 2, kHalfWords>(p + w * kWordBytes, x, k + w * W::kWordElements, s);
  } else {
    FT_UNROLL
    for (int w = 0; w < kHalfWords; ++w)
      add_words<W, T, R, 1, 1>(p + w * kWordBytes, x, k + w * W::kWordElements, s);
    FT_UNROLL
    for (int w = kHalfWords; w < 2 * kHalfWords; ++w)
      add_words<W, T, R, 1, 1>(p + w * kWordBytes, x, k + w * W::kWordElements, s + 1);
  }
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) s[0][t][r] = vf_add(s[0][t][r], s[1][t][r]);
  }
}

// The last words of a row that is no multiple of a chunk; plain formats only.
template <class W, int T, int R>
FT_INLINE void sum_tail(const uint8_t* p, const float* const* x, int64_t k, int64_t cols,
                        VF (*s)[T][R]) {
  clear<T, R>(s[0]);
  clear<T, R>(s[1]);
  const int64_t middle = k + kChunk / 2;
  for (; k < cols; k += W::kWordElements, p += kWordBytes)
    add_words<W, T, R, 1, 1>(p, x, k, k < middle ? s : s + 1);
  for (int t = 0; t < T; ++t)
    for (int r = 0; r < R; ++r) s[0][t][r] = vf_add(s[0][t][r], s[1][t][r]);
}

template <int T, int R>
FT_INLINE void add_all(VF (*acc)[R], VF (*s)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = vf_add(acc[t][r], s[t][r]);
  }
}

// Rows first_row .. first_row + R * kLanes - 1 of the panel against T tokens.
template <class W, int T, int R>
FT_INLINE void tile(const PanelRun* run, int first_row, int first_token) {
  constexpr int64_t kChunkBytes = W::kScaleBytes + kChunk / W::kWordElements * kWordBytes;
  const float* x[T];
  VF acc[T][R], s[2][T][R];
  FT_UNROLL
  for (int t = 0; t < T; ++t) x[t] = run->x[first_token + t];
  clear<T, R>(acc);
  const uint8_t* chunk = run->panel;
  const int64_t cols = run->cols;
  const int64_t ahead = first_row == 0 && first_token == 0 ? run->prefetch_bytes : 0;
  int64_t k = 0;
  for (; k + kChunk <= cols; k += kChunk, chunk += kChunkBytes) {
    if (ahead > 0) {
      for (int64_t line = 0; line < kChunkBytes; line += 64)
        __builtin_prefetch(chunk + ahead + line);
    }
    sum_chunk<W, T, R>(chunk + W::kScaleBytes + first_row * 4, x, k, s);
    if constexpr (W::kPlain) {
      add_all<T, R>(acc, s[0]);
    } else {
      W::template finish<T, R>(chunk + first_row * 2, x, run->sums + k / kChunk, s[0], acc);
    }
  }
  if constexpr (W::kPlain) {
    if (k < cols) {
      sum_tail<W, T, R>(chunk + first_row * 4, x, k, cols, s);
      add_all<T, R>(acc, s[0]);
    }
  }
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r)
      vf_store(run->y + (first_token + t) * kPanelRows + first_row + r * kLanes, acc[t][r]);
  }
}

template <class W, int T, int R>
__attribute__((noinline)) void tile_rows(const PanelRun* run, int first_token) {
  for (int row = 0; row < kPanelRows; row += R * kLanes) tile<W, T, R>(run, row, first_token);
}

template <class W>
void panel(const PanelRun* run) {
  int t = 0;
  const int n = run->tokens;
  if constexpr (kTileTokens >= 8)
    for (; t + 8 <= n; t += 8) tile_rows<W, 8, kTileRegs>(run, t);
  if constexpr (kTileTokens >= 4)
    for (; t + 4 <= n; t += 4) tile_rows<W, 4, kTileRegs>(run, t);
  for (; t + 2 <= n; t += 2) tile_rows<W, 2, kTileRegs>(run, t);
  if (t < n) tile_rows<W, 1, kTileRegs1>(run, t);
}

// Panel order of a 4-bit chunk: position 8w + 2b + h is byte b of word w, h = 1 the high nibble,
// which is element 4w + b + 16h. Position p stands at bit 4 * (p % 4) after the word's shift.
void pack_row_q4(const float* x, int64_t cols, float* out) {
  float* sums = out + cols;
  for (int64_t k = 0; k < cols; k += kChunk) {
    const float* in = x + k;
    float* to = out + k;
    for (int i = 0; i < 16; i += 2) {
      to[2 * i] = in[i];
      to[2 * i + 1] = in[16 + i] * (1.0f / 16);
      to[2 * i + 2] = in[i + 1] * (1.0f / 256);
      to[2 * i + 3] = in[17 + i] * (1.0f / 4096);
    }
    float part[4] = {0, 0, 0, 0};
    for (int i = 0; i < kChunk; i += 4)
      for (int j = 0; j < 4; ++j) part[j] += in[i + j];
    sums[k / kChunk] = (part[0] + part[2]) + (part[1] + part[3]);
  }
}

}  // namespace
}  // namespace ft

// Formats whose elements are put together from several words: q5_0, q5_1, q4_k, q5_k, q6_k.
//
// Word w (0 .. 7) of a chunk comes as four unsigned byte codes, elements 4w .. 4w + 3 of the row. The
// sum over each half of a chunk, kOffset taken from every code, goes to finish(), which applies the
// scales. Only the sums differ between targets: float32 activations, or the integers of ints-inl.h.
namespace ft {
namespace {

// One group of a panel for a tile of rows.
struct CodeGroup {
  const uint8_t* scales;  // of row first_row
  const uint8_t* words;   // of row first_row
};

// Word `index` of R row vectors.
FT_INLINE VI group_word(const CodeGroup& group, int index, int r) {
  return vi_load(group.words + index * kWordBytes + r * kLanes * 4);
}

FT_INLINE VI low_nibbles(VI v) { return vi_and(v, vi_set1(0x0f0f0f0f)); }

struct Codes {
  static constexpr int kOffset = 0;
  static constexpr int kWordElements = 4;
  static constexpr int kGroups = 1;
  static constexpr float kIntUnit = 1;
  static constexpr int kBytes = 2;  // of an activation as an integer
  static constexpr bool kSplit = false;
  static constexpr bool kFetch = false;   // words are not read in order
  static constexpr int order(int place) { return place; }
};

struct Q50Codes : Codes {
  static constexpr int kOffset = 16, kChunks = 1, kScaleBytes = 64, kWords = 5;
  FT_INLINE VI code(const CodeGroup& group, int, int w, int r) {
    const VI nibbles = group_word(group, 1 + w % 4, r);
    const VI four = low_nibbles(w < 4 ? nibbles : vi_shr<4>(nibbles));
    return vi_or(four, vi_spread_bits(group_word(group, 0, r), 4 * w));
  }
  template <int T, int R>
  FT_INLINE void finish(const CodeGroup& group, int, const float* const*, VF (*s)[T][R],
                        VF (*acc)[R]) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      const VF d = vf_load_half((const uint16_t*)group.scales + r * kLanes);
      FT_UNROLL
      for (int t = 0; t < T; ++t) acc[t][r] = vf_fma(d, vf_add(s[0][t][r], s[1][t][r]), acc[t][r]);
    }
  }
};

// acc += scale * s + offset * sum of the chunk's activations
template <int T, int R>
FT_INLINE void add_affine(VF scale, VF offset, int r, const float* const* extras, VF (*s)[T][R],
                          VF (*acc)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    acc[t][r] = vf_fma(scale, vf_add(s[0][t][r], s[1][t][r]), acc[t][r]);
    acc[t][r] = vf_fma_at(offset, extras[t] + 3, acc[t][r]);
  }
}

struct Q51Codes : Q50Codes {
  static constexpr int kOffset = 0, kScaleBytes = 128;
  template <int T, int R>
  FT_INLINE void finish(const CodeGroup& group, int, const float* const* extras, VF (*s)[T][R],
                        VF (*acc)[R]) {
    const uint16_t* scales = (const uint16_t*)group.scales;
    FT_UNROLL
    for (int r = 0; r < R; ++r)
      add_affine<T, R>(vf_load_half(scales + r * kLanes),
                       vf_load_half(scales + kPanelRows + r * kLanes), r, extras, s, acc);
  }
};

// d * scale and -dmin * minimum of chunk c; words 0 .. 2 of the group hold both in 6 bits each.
struct KCodes : Codes {
  static constexpr int kChunks = 8, kScaleBytes = 128;
  template <int T, int R>
  FT_INLINE void finish(const CodeGroup& group, int c, const float* const* extras, VF (*s)[T][R],
                        VF (*acc)[R]) {
    const uint16_t* scales = (const uint16_t*)group.scales;
    const int at = c % 4 * 8;
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VI scale = vi_shift_right(group_word(group, 0, r), at);
      VI minimum = vi_shift_right(group_word(group, 1, r), at);
      if (c < 4) {
        scale = vi_and(scale, vi_set1(63));
        minimum = vi_and(minimum, vi_set1(63));
      } else {
        const VI low = vi_shift_right(group_word(group, 2, r), at);
        scale = vi_or(vi_and(low, vi_set1(15)), vi_and(vi_shr<2>(scale), vi_set1(48)));
        minimum =
            vi_or(vi_and(vi_shr<4>(low), vi_set1(15)), vi_and(vi_shr<2>(minimum), vi_set1(48)));
      }
      const VF d = vf_load_half(scales + r * kLanes);
      const VF least = vf_load_half(scales + kPanelRows + r * kLanes);
      const VF offset = vf_sub(vf_set1(0.0f), vf_mul(least, vi_to_f(minimum)));
      add_affine<T, R>(vf_mul(d, vi_to_f(scale)), offset, r, extras, s, acc);
    }
  }
};

struct Q4KCodes : KCodes {
  static constexpr int kWords = 35;
  FT_INLINE VI code(const CodeGroup& group, int c, int w, int r) {
    return low_nibbles(vi_shift_right(group_word(group, 3 + c / 2 * 8 + w, r), c % 2 * 4));
  }
};

struct Q5KCodes : KCodes {
  static constexpr int kWords = 43;
  static constexpr bool kFetch = true;
  FT_INLINE VI code(const CodeGroup& group, int c, int w, int r) {
    const VI four =
        low_nibbles(vi_shift_right(group_word(group, 11 + c / 2 * 8 + w, r), c % 2 * 4));
    const VI bit = vi_and(vi_shift_right(group_word(group, 3 + w, r), c), vi_set1(0x01010101));
    return vi_or(four, vi_shl<4>(bit));
  }
};

// A scale for each half of a chunk, int8 in words 48 .. 51.
struct Q6KCodes : Codes {
  static constexpr int kOffset = 32, kChunks = 8, kScaleBytes = 64, kWords = 52;
  static constexpr bool kSplit = true, kFetch = true;
  FT_INLINE VI code(const CodeGroup& group, int c, int w, int r) {
    const int half = c / 4, quarter = c % 4;
    const VI low = group_word(group, half * 16 + quarter % 2 * 8 + w, r);
    const VI high = group_word(group, 32 + half * 8 + w, r);
    const VI two = vi_and(vi_shift_right(high, 2 * quarter), vi_set1(0x03030303));
    return vi_or(low_nibbles(vi_shift_right(low, quarter / 2 * 4)), vi_shl<4>(two));
  }
  template <int T, int R>
  FT_INLINE void finish(const CodeGroup& group, int c, const float* const*, VF (*s)[T][R],
                        VF (*acc)[R]) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      const VF d = vf_load_half((const uint16_t*)group.scales + r * kLanes);
      const VI both = vi_shift_right(group_word(group, 48 + c / 2, r), c % 2 * 16);
      const VF first = vf_mul(d, vi_to_f(vi_sra<24>(vi_shl<24>(both))));
      const VF second = vf_mul(d, vi_to_f(vi_sra<24>(vi_shl<16>(both))));
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        acc[t][r] = vf_fma(first, s[0][t][r], acc[t][r]);
        acc[t][r] = vf_fma(second, s[1][t][r], acc[t][r]);
      }
    }
  }
};

#if defined(FT_HAVE_DOTS)
template <class W>
constexpr int kCodeBytes = W::kBytes;  // of an element of a packed row

// The sums of both halves as integers times the unit. Formats without kSplit leave s[1] at zero.
template <class W, int T, int R>
FT_INLINE void sum_codes(const CodeGroup& group, int c, const float* const* x,
                         const float* const* extras, VF (*s)[T][R]) {
  constexpr int kParts = W::kSplit ? 2 : 1;
  FT_UNROLL
  for (int part = 0; part < kParts; ++part) {
    VI high[T][R], low[T][R];
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) {
        high[t][r] = vi_set1(0);
        low[t][r] = W::kOffset == 0 ? vi_set1(0) : vf_as_i(vf_set1(extras[t][part]));
      }
    }
    FT_UNROLL
    for (int i = 0; i < 8 / kParts; ++i) {
      const int w = part * 8 / kParts + i;
      FT_UNROLL
      for (int r = 0; r < R; ++r) {
        const VI code = W::code(group, c, w, r);
        FT_UNROLL
        for (int t = 0; t < T; ++t) {
          const uint8_t* at = (const uint8_t*)x[t] + 4 * w;
          if constexpr (W::kBytes == 2) high[t][r] = vi_dot_at(code, at, high[t][r]);
          low[t][r] = vi_dot_at(code, at + (W::kBytes - 1) * kChunk, low[t][r]);
        }
      }
    }
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r)
        s[part][t][r] =
            vf_mul_at(vi_to_f(vi_add(vi_shl<8>(high[t][r]), low[t][r])), extras[t] + 2);
    }
  }
  if constexpr (!W::kSplit) clear<T, R>(s[1]);
}

constexpr int kWideTileRegs = 1;
#else
template <class W, int T, int R, int e>
FT_INLINE void add_codes(VI code, int r, const float* const* x, int w, VF (*s)[R]) {
  const VI byte = e == 3 ? vi_shr<24>(code) : vi_and(vi_shr<8 * e>(code), vi_set1(255));
  VF value = vi_to_f(byte);
  if constexpr (W::kOffset != 0) value = vf_sub(value, vf_set1((float)W::kOffset));
  FT_UNROLL
  for (int t = 0; t < T; ++t) s[t][r] = vf_fma_at(value, x[t] + 4 * w + e, s[t][r]);
  if constexpr (e < 3) add_codes<W, T, R, e + 1>(code, r, x, w, s);
}

template <class W, int T, int R>
FT_INLINE void sum_codes(const CodeGroup& group, int c, const float* const* x, const float* const*,
                         VF (*s)[T][R]) {
  FT_UNROLL
  for (int half = 0; half < 2; ++half) {
    clear<T, R>(s[half]);
    FT_UNROLL
    for (int i = 0; i < 4; ++i) {
      FT_UNROLL
      for (int r = 0; r < R; ++r)
        add_codes<W, T, R, 0>(W::code(group, c, half * 4 + i, r), r, x, half * 4 + i, s[half]);
    }
  }
}
template <class W>
constexpr int kCodeBytes = 4;
constexpr int kWideTileRegs = kTileRegs;

// The row as it is, the sum of each chunk as its last extra.
void pack_row_sums(const float* x, int64_t cols, float* out) {
  memcpy(out, x, 4 * (size_t)cols);
  for (int64_t k = 0; k < cols; k += kChunk) {
    float part[4] = {0, 0, 0, 0};
    for (int i = 0; i < kChunk; i += 4)
      for (int j = 0; j < 4; ++j) part[j] += x[k + i + j];
    float* extras = out + cols + k / kChunk * kExtras;
    extras[0] = extras[1] = extras[2] = 0.0f;
    extras[3] = (part[0] + part[2]) + (part[1] + part[3]);
  }
}
#endif

template <class W, int T, int R>
FT_INLINE void code_tile(const PanelRun* run, int first_row, int first_token) {
  constexpr int64_t kGroupBytes = W::kScaleBytes + W::kWords * kWordBytes;
  constexpr int kScaleUnit = 2;
  VF acc[T][R];
  clear<T, R>(acc);
  const uint8_t* base = run->panel;
  // Where words are not read in order the hardware sees no stream: the next group is fetched while
  // this one is computed, a part with each chunk.
  constexpr int64_t kPart = kGroupBytes / W::kChunks;
  const bool fetch = W::kFetch && first_row == 0 && first_token == 0;
  for (int64_t k = 0; k < run->cols; k += W::kChunks * kChunk, base += kGroupBytes) {
    const CodeGroup group{base + first_row * kScaleUnit, base + W::kScaleBytes + first_row * 4};
    for (int c = 0; c < W::kChunks; ++c) {
      if (fetch) {
        const uint8_t* next = base + kGroupBytes + c * kPart;
        for (int64_t line = 0; line < kPart; line += 64)
          __builtin_prefetch(next + line);
      }
      const float *x[T], *extras[T];
      VF s[2][T][R];
      const int64_t at = k + c * kChunk;
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        const float* row = run->x[first_token + t];
        x[t] = (const float*)((const uint8_t*)row + at * kCodeBytes<W>);
        extras[t] = row + run->sums + at / kChunk * kExtras;
      }
      sum_codes<W, T, R>(group, c, x, extras, s);
      W::template finish<T, R>(group, c, extras, s, acc);
    }
  }
  store_tile<T, R>(run, first_row, first_token, acc);
}

struct CodeTile {
  template <class W, int T, int R>
  FT_INLINE void run(const PanelRun* run, int first_row, int first_token) {
    code_tile<W, T, R>(run, first_row, first_token);
  }
};

template <class W>
void panel_codes(const PanelRun* run) {
  over_tiles<CodeTile, W, kWideTileRegs, kTileRegs, kTileRegs1>(run);
}

}  // namespace
}  // namespace ft

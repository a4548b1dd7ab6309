// q4_k and q5_k on small integers, for targets that have them (see ints-inl.h).
//
// What belongs to a group of 256 elements is done once for the group: activations are int16 in
// units of its largest / 32512, so the sums of its chunks add up in their 6-bit scales before
// anything is multiplied by d or by the unit; and the minima, eight bytes of a row, meet the eight
// sums of a token as one more product of integers.
//
// A group of a packed row: chunk after chunk 32 upper bytes and 32 lower ones; in its extras the
// unit, the unit of the sums, the sums' upper bytes and their lower bytes, chunk after chunk.
namespace ft {
namespace {

// By n bits to the right, or to the left where n is negative.
template <int n>
FT_INLINE VI vi_move(VI v) {
  if constexpr (n > 0) return vi_shr<n>(v);
  if constexpr (n < 0) return vi_shl<-n>(v);
  return v;
}

struct Q4KInts {
  static constexpr int kWords = Q4KCodes::kWords, kFirstWord = 3;
  static constexpr bool kFetch = false;
  // Codes of odd chunks stay where they are, at 16 times their value; so do the scales of the even.
  static constexpr int kScaleShift = 4;
  template <int c>
  FT_INLINE VI code(const CodeGroup&, VI v, int, int) {
    return vi_and(v, vi_set1((int32_t)(c % 2 == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u)));
  }
};

struct Q5KInts {
  static constexpr int kWords = Q5KCodes::kWords, kFirstWord = 11;
  static constexpr bool kFetch = true;  // words 3 .. 10 are read again for every pair of chunks
  static constexpr int kScaleShift = 0;
  template <int c>
  FT_INLINE VI code(const CodeGroup& group, VI v, int w, int r) {
    const VI bit = vi_move<c - 4>(group_word(group, 3 + w, r));
    return vi_or(low_nibbles(c % 2 == 0 ? v : vi_shr<4>(v)), vi_and(bit, vi_set1(0x10101010)));
  }
};

// Scales and minima of a group as bytes, chunks 0 .. 3 and 4 .. 7 of every row.
template <int R>
struct GroupScales {
  VI scale[2][R], least[2][R];
};

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

// Scale of chunk c as a number.
template <class W, int R, int c>
FT_INLINE VF chunk_scale(const GroupScales<R>& scales, int r) {
  constexpr int kUp = c % 2 == 0 ? W::kScaleShift : 0;
  const VI moved = vi_move<c % 4 * 8 - kUp>(scales.scale[c / 4][r]);
  return vi_to_f(vi_and(moved, vi_set1(63 << kUp)));
}

template <class W, int T, int R, int c>
FT_INLINE void add_k_word(VI code, int r, const uint8_t* const* x, int w, VI (*high)[R],
                          VI (*low)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    const uint8_t* at = x[t] + c * 2 * kChunk + 4 * w;
    high[t][r] = vi_dot_at(code, at, high[t][r]);
    low[t][r] = vi_dot_at(code, at + kChunk, low[t][r]);
  }
}

// Adds the sums of chunks c .. c + N - 1 times their scales. Two chunks share their words.
template <class W, int T, int R, int c, int N>
FT_INLINE void add_k_chunks(const CodeGroup& group, const GroupScales<R>& scales,
                            const uint8_t* const* x, VF (*block)[R]) {
  VI high[N][T][R], low[N][T][R];
  FT_UNROLL
  for (int n = 0; n < N; ++n) {
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) high[n][t][r] = low[n][t][r] = vi_set1(0);
    }
  }
  FT_UNROLL
  for (int w = 0; w < 8; ++w) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      const VI v = group_word(group, W::kFirstWord + c / 2 * 8 + w, r);
      add_k_word<W, T, R, c>(W::template code<c>(group, v, w, r), r, x, w, high[0], low[0]);
      if constexpr (N == 2)
        add_k_word<W, T, R, c + 1>(W::template code<c + 1>(group, v, w, r), r, x, w, high[1],
                                   low[1]);
    }
  }
  FT_UNROLL
  for (int r = 0; r < R; ++r) {
    const VF scale = chunk_scale<W, R, c>(scales, r);
    FT_UNROLL
    for (int t = 0; t < T; ++t)
      block[t][r] =
          vf_fma(scale, vi_to_f(vi_add(vi_shl<8>(high[0][t][r]), low[0][t][r])), block[t][r]);
    if constexpr (N == 2) {
      const VF next = chunk_scale<W, R, c + 1>(scales, r);
      FT_UNROLL
      for (int t = 0; t < T; ++t)
        block[t][r] =
            vf_fma(next, vi_to_f(vi_add(vi_shl<8>(high[1][t][r]), low[1][t][r])), block[t][r]);
    }
  }
  if constexpr (c + N < kGroupChunks) add_k_chunks<W, T, R, c + N, N>(group, scales, x, block);
}

// y += (d unit) block - (dmin unit of the sums) minima . sums
template <class W, int T, int R>
FT_INLINE void finish_group(const CodeGroup& group, const GroupScales<R>& scales,
                            const float* const* extras, VF (*block)[R], float* y) {
  const uint16_t* halves = (const uint16_t*)group.scales;
  FT_UNROLL
  for (int r = 0; r < R; ++r) {
    const VF d = vf_mul(vf_load_half(halves + r * kLanes), vf_set1(1.0f / (1 << W::kScaleShift)));
    const VF least = vf_sub(vf_set1(0.0f), vf_load_half(halves + kPanelRows + r * kLanes));
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      const uint8_t* sums = (const uint8_t*)(extras[t] + 2);
      VI minima = vi_dot_at(scales.least[0][r], sums, vi_set1(0));
      minima = vi_shl<8>(vi_dot_at(scales.least[1][r], sums + 4, minima));
      minima = vi_dot_at(scales.least[0][r], sums + 8, minima);
      minima = vi_dot_at(scales.least[1][r], sums + 12, minima);
      float* to = y + t * kPanelRows + r * kLanes;
      const VF sum = vf_fma(vf_mul_at(d, extras[t]), block[t][r], vf_load(to));
      vf_store(to, vf_fma(vf_mul_at(least, extras[t] + 1), vi_to_f(minima), sum));
    }
  }
}

template <class W, int T, int R>
FT_INLINE void k_tile(const PanelRun* run, int first_row, int first_token) {
  constexpr int64_t kGroupBytes = KCodes::kScaleBytes + W::kWords * kWordBytes;
  constexpr int kTogether = T * R <= 4 ? 2 : 1;
  float* y = run->y + first_token * kPanelRows + first_row;
  clear_result<T, R>(y);
  const uint8_t* base = run->panel;
  const bool fetch = W::kFetch && first_row == 0 && first_token == 0;
  for (int64_t k = 0; k < run->cols; k += kGroupElements, base += kGroupBytes) {
    if (fetch) {
      for (int64_t line = 0; line < kGroupBytes; line += 64)
        __builtin_prefetch(base + kGroupBytes + line);
    }
    const CodeGroup group{base + first_row * 2, base + KCodes::kScaleBytes + first_row * 4};
    const uint8_t* x[T];
    const float* extras[T];
    VF block[T][R];
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      const float* row = run->x[first_token + t];
      x[t] = (const uint8_t*)row + 2 * k;
      extras[t] = row + run->sums + k / kChunk * kExtras;
    }
    clear<T, R>(block);
    GroupScales<R> scales;
    split_scales<R>(group, scales);
    add_k_chunks<W, T, R, 0, kTogether>(group, scales, x, block);
    finish_group<W, T, R>(group, scales, extras, block, y);
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

// Eight int32 in units of their largest / 32512, as upper and lower bytes. Returns the unit.
FT_INLINE float pack_sums(const int32_t* sums, uint8_t* upper, uint8_t* lower) {
  float largest = 0;
  for (int c = 0; c < kGroupChunks; ++c) {
    const float size = sums[c] < 0 ? -(float)sums[c] : (float)sums[c];
    largest = size > largest ? size : largest;
  }
  const float each = largest > 0 ? 32512.0f / largest : 0.0f;
  for (int c = 0; c < kGroupChunks; ++c) {
    const float value = (float)sums[c] * each;
    const int32_t whole = (int32_t)(value < 0 ? value - 0.5f : value + 0.5f);
    const int32_t top = (whole + 128) >> 8;
    upper[c] = (uint8_t)top;
    lower[c] = (uint8_t)(whole - top * 256);
  }
  return largest / 32512.0f;
}

// May write where it reads: out = x.
[[maybe_unused]] void pack_k(const float* x, int64_t cols, float* out) {
  alignas(64) int32_t sums[kGroupChunks];
  for (int64_t k = 0; k < cols; k += kGroupElements) {
    const float largest = vf_largest(x + k, kGroupChunks), unit = largest / 32512.0f;
    for (int c = 0; c < kGroupChunks; ++c) {
      int32_t halves[2];
      vi_store_chunk((uint8_t*)out + 2 * (k + c * kChunk), x + k + c * kChunk, largest, halves);
      sums[c] = halves[0] + halves[1];
    }
    float* extras = out + cols + k / kChunk * kExtras;
    memset(extras, 0, 4 * kExtras * kGroupChunks);
    uint8_t* bytes = (uint8_t*)(extras + 2);
    extras[0] = unit;
    extras[1] = unit * pack_sums(sums, bytes, bytes + kGroupChunks);
  }
}

}  // namespace
}  // namespace ft

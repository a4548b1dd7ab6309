// Products of pairs, for targets with instructions that add two products of bfloat16 to a float32
// lane and two of int16 to an int32 lane.
//
// Only the activations are rounded, once per row (pack_dots): to bfloat16 for floating-point
// formats; formats whose codes are small integers (E2M1: halves) take int16 in units of the chunk's
// largest / 32767, whose products add up exactly. Scales stay float32 and are applied to the sum of
// a chunk. A word gives kPairs vectors of pairs; order() says which element of a chunk stands at a
// place of the packed row.
namespace ft {
namespace {

// acc += (d * unit) * s with a scale for every row and the unit of the token's chunk.
template <int T, int R>
FT_INLINE void add_ints(const ChunkAt& at, const VF* d, VF (*s)[T][R], VF (*acc)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    const float* unit = at.extras(t) + 1;
    FT_UNROLL
    for (int r = 0; r < R; ++r)
      acc[t][r] = vf_fma(vf_mul_at(d[r], unit), vi_to_f(vf_as_i(s[0][t][r])), acc[t][r]);
  }
}

template <int R>
FT_INLINE void load_halves(const ChunkAt& at, int offset, VF* d) {
  const uint16_t* scales = (const uint16_t*)at.scales + offset + at.first_row;
  FT_UNROLL
  for (int r = 0; r < R; ++r) d[r] = vf_load_half(scales + r * kLanes);
}

struct Bf16Dots : Bf16Words {
  static constexpr bool kDots = true;
  static constexpr int kPairs = 1;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return v;
  }
  static constexpr int order(int place) { return place; }
};

// Pair p of 4-bit words: nibble p of each 16-bit half, that is nibbles p and p + 4 of the word.
struct NibblePairs {
  static constexpr bool kDots = true;
  static constexpr int kPairs = 4;
  // Nibble 0 .. 7 of word w, for elements in the order of the row.
  static constexpr int nibble_of(int place) { return place / 2 % 4 + place % 2 * 4; }
  static constexpr int order(int place) { return place / 8 * 8 + nibble_of(place); }
};

// The order of GGML's nibbles: low ones hold the first half of a chunk, high ones the second.
struct SplitNibblePairs : NibblePairs {
  static constexpr int order(int place) {
    const int nibble = nibble_of(place);
    return place / 8 * 4 + nibble / 2 + nibble % 2 * 16;
  }
};

template <int p>
FT_INLINE VI e2m1_pair(VI v) {  // in units of a half
  return vi_lookup_halves(vi_shr16<4 * p>(v), kE2m1Ints);
}

struct Mxfp4Ints : Mxfp4Words {
  static constexpr bool kInts = true;
  static constexpr float kIntUnit = 0.5f;
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    VF d[R];
    FT_UNROLL
    for (int r = 0; r < R; ++r) d[r] = e8m0_scale(vi_load_u8(at.scales + at.first_row + r * kLanes));
    add_ints<T, R>(at, d, s, acc);
  }
};

struct Mxfp4Dots : Mxfp4Ints, NibblePairs {
  using NibblePairs::kDots;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return e2m1_pair<p>(v);
  }
};

struct Mxfp4GgufDots : Mxfp4Ints, SplitNibblePairs {
  using SplitNibblePairs::kDots;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return e2m1_pair<p>(v);
  }
};

template <bool divide>
struct Nvfp4Dots : Nvfp4Words<divide>, NibblePairs {
  using NibblePairs::kDots;
  static constexpr bool kInts = true;
  static constexpr float kIntUnit = 0.5f;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return e2m1_pair<p>(v);
  }
  template <int T, int R>
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
      const VF unit = vf_set1(at.extras(t)[1]);
      FT_UNROLL
      for (int r = 0; r < R; ++r) {
        VF both = vf_mul(d[0][r], vi_to_f(vf_as_i(s[0][t][r])));
        both = vf_fma(d[1][r], vi_to_f(vf_as_i(s[1][t][r])), both);
        acc[t][r] = vf_fma(unit, both, acc[t][r]);
      }
    }
  }
};

struct Q40Dots : Q4Words, SplitNibblePairs {
  using SplitNibblePairs::kDots;
  static constexpr bool kInts = true;
  static constexpr int kScaleBytes = 64;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return vi_lookup_halves(vi_shr16<4 * p>(v), kCentredInts);
  }
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    VF d[R];
    load_halves<R>(at, 0, d);
    add_ints<T, R>(at, d, s, acc);
  }
};

struct Q41Dots : Q41Words, SplitNibblePairs {
  using SplitNibblePairs::kDots;
  static constexpr bool kInts = true, kSums = true;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return vi_lookup_halves(vi_shr16<4 * p>(v), kNumberInts);
  }
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    VF d[R], m[R];
    load_halves<R>(at, 0, d);
    load_halves<R>(at, kPanelRows, m);
    add_ints<T, R>(at, d, s, acc);
    FT_UNROLL
    for (int t = 0; t < T; ++t) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) acc[t][r] = vf_fma_at(m[r], at.extras(t), acc[t][r]);
    }
  }
};

// Pair 0: bytes 0 and 2 of a word, pair 1: bytes 1 and 3.
struct BytePairs {
  static constexpr bool kDots = true;
  static constexpr int kPairs = 2;
  static constexpr int order(int place) {
    return place / 4 * 4 + place / 2 % 2 + place % 2 * 2;
  }
};

struct Q8Dots : Q8Words, BytePairs {
  using BytePairs::kDots;
  static constexpr bool kInts = true;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return vi_sra16<8>(p == 0 ? vi_shl16<8>(v) : v);
  }
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    VF d[R];
    load_halves<R>(at, 0, d);
    add_ints<T, R>(at, d, s, acc);
  }
};

struct Fp8TensorDots : Fp8TensorWords, BytePairs {
  using BytePairs::kDots;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return vi_e4m3_halves<p>(v);
  }
};

struct Fp8BlockDots : Fp8BlockWords, BytePairs {
  using BytePairs::kDots;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return vi_e4m3_halves<p>(v);
  }
};

// Adds pairs p.. of one word to the sums.
template <class W, int T, int R, int p>
FT_INLINE void add_pairs(const VI (*v), const float* const* x, int64_t k, VF (*s)[R]) {
  VI w[R];
  FT_UNROLL
  for (int r = 0; r < R; ++r) w[r] = W::template pair<p>(v[r]);
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      const uint16_t* at = (const uint16_t*)x[t] + k + 2 * p;
      s[t][r] = W::kInts ? vf_dot_ints_at(w[r], at, s[t][r]) : vf_dot_at(w[r], at, s[t][r]);
    }
  }
  if constexpr (p + 1 < W::kPairs) add_pairs<W, T, R, p + 1>(v, x, k, s);
}

template <class W, int T, int R>
FT_INLINE void add_dots(const uint8_t* p, const float* const* x, int64_t k, VF (*s)[R], VI* seen) {
  VI v[R];
  FT_UNROLL
  for (int r = 0; r < R; ++r) {
    v[r] = vi_load(p + r * kLanes * 4);
    if constexpr (W::kWatch) seen[r] = W::watch(seen[r], v[r]);
  }
  add_pairs<W, T, R, 0>(v, x, k, s);
}

// Rounds a row to bfloat16, or each chunk to int16, in the format's order, zeros up to a whole
// chunk. Extras: the sum of the rounded values where it is needed, the unit of the integers.
template <class W>
void pack_dots(const float* x, int64_t cols, float* out) {
  uint16_t* to = (uint16_t*)out;
  alignas(64) float moved[kChunk];
  for (int64_t k = 0; k < cols; k += kChunk) {
    const int count = cols - k < kChunk ? (int)(cols - k) : kChunk;
    for (int place = 0; place < kChunk; ++place) {
      const int element = W::order(place);
      moved[place] = element < count ? x[k + element] : 0.0f;
    }
    if constexpr (W::kInts) {
      float* extras = out + cols + k / kChunk * kExtras;
      const float unit = vi_store_ints(to + k, moved);
      extras[0] = W::kSums ? unit * (float)vi_sum_ints(to + k) : 0.0f;
      extras[1] = unit * W::kIntUnit;
    } else {
      vi_store_halves(to + k, moved);
    }
  }
}

}  // namespace
}  // namespace ft

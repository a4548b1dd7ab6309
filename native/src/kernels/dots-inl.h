// Products of pairs: weights and activations as bfloat16, for targets with an instruction that adds
// two products of bfloat16 to a float32 lane. Formats of small integers: ints-inl.h.
//
// Every code of these formats is a bfloat16 exactly, so only the activations are rounded, once per
// row (pack_dots); scales stay float32 and are applied to the sum of a chunk. A word gives kPairs
// vectors of pairs; order() says which element of a chunk stands at a place of the packed row.
namespace ft {
namespace {

struct Bf16Dots : Bf16Words {
  static constexpr bool kDots = true;
  static constexpr int kPairs = 1;
  template <int p>
  FT_INLINE VI pair(VI v) {
    return v;
  }
  static constexpr int order(int place) { return place; }
};

// Pair 0: bytes 0 and 2 of a word, pair 1: bytes 1 and 3.
struct BytePairs {
  static constexpr bool kDots = true;
  static constexpr int kPairs = 2;
  static constexpr int order(int place) {
    return place / 4 * 4 + place / 2 % 2 + place % 2 * 2;
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
      s[t][r] = vf_dot_at(w[r], at, s[t][r]);
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

// Rounds a row to bfloat16 in the format's order, zeros up to a whole chunk.
template <class W>
void pack_dots(const float* x, int64_t cols, float* out) {
  alignas(64) float moved[kChunk];
  for (int64_t k = 0; k < cols; k += kChunk) {
    const int count = cols - k < kChunk ? (int)(cols - k) : kChunk;
    for (int place = 0; place < kChunk; ++place) {
      const int element = W::order(place);
      moved[place] = element < count ? x[k + element] : 0.0f;
    }
    vi_store_halves((uint16_t*)out + k, moved);
  }
}

}  // namespace
}  // namespace ft

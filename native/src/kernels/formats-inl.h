// How the words and scales of each format of GGML become floats. The tiles are in panel-inl.h.
namespace ft {
namespace {

constexpr int kWordBytes = kPanelRows * 4;  // one word of all rows

// What the scales of a chunk are applied to.
struct ChunkAt {
  const uint8_t* panel;   // its start, where the factors of formats with a header are
  const uint8_t* scales;  // of this chunk
  int first_row;          // of the tile
  int64_t k;              // first element
  const float* const* x;
  int64_t sums;  // see PanelRun

  // The extras of this chunk.
  inline __attribute__((always_inline)) const float* extras(int t) const {
    return x[t] + sums + k / kChunk * kExtras;
  }
};

template <int T, int R>
FT_INLINE void add_all(VF (*s)[R], VF (*acc)[R]) {
  FT_UNROLL
  for (int t = 0; t < T; ++t) {
    FT_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = vf_add(acc[t][r], s[t][r]);
  }
}

// A format. element<e>(v) is element e of the words v as floats, up to a factor that x or finish()
// takes back. finish() applies the scales of a chunk, end() what belongs to a whole row.
struct Words {
  static constexpr bool kTail = false;   // a row may end inside a chunk
  static constexpr bool kSplit = false;  // the halves of a chunk have scales of their own
  static constexpr bool kWatch = false;  // watch() looks at every word
  static constexpr bool kDots = false;   // products of pairs, see dots-inl.h
  static constexpr float kIntUnit = 1;   // what the integers of codes count, see ints-inl.h
  static constexpr int kBytes = 2;       // of an activation as an integer, see ints-inl.h
  static constexpr int kScaleBytes = 0;  // scales of a joined group, in front of its words
  static constexpr int kJoined = 1;      // chunks of a joined group
  FT_INLINE int64_t header_bytes(int64_t) { return 0; }
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt&, VF (*s)[T][R], VF (*acc)[R], VI*) {
    add_all<T, R>(s[0], acc);
  }
  template <int T, int R>
  FT_INLINE void end(const uint8_t*, int, VF (*)[R], const VI*) {}
};

struct F32Words : Words {
  static constexpr bool kTail = true;
  static constexpr int kWordElements = 1;
  template <int e>
  FT_INLINE VF element(VI v) {
    return vi_as_f(v);
  }
};

struct Bf16Words : Words {
  static constexpr bool kTail = true;
  static constexpr int kWordElements = 2;
  template <int e>
  FT_INLINE VF element(VI v) {
    if constexpr (e == 0) return vi_as_f(vi_shl<16>(v));
    return vi_as_f(vi_and(v, vi_set1((int32_t)0xffff0000)));
  }
};

struct F16Words : Words {
  static constexpr bool kTail = true;
  static constexpr int kWordElements = 2;
  template <int e>
  FT_INLINE VF element(VI v) {
    if constexpr (e == 0) return vi_low_half(v);
    return vi_low_half(vi_shr<16>(v));
  }
};

struct Q8Words : Words {
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
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    const uint16_t* scales = (const uint16_t*)at.scales + at.first_row;
    const VF unit = vf_set1(1.0f / 16777216.0f);
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VF d = vf_mul(vf_load_half(scales + r * kLanes), unit);
      FT_UNROLL
      for (int t = 0; t < T; ++t) acc[t][r] = vf_fma(d, s[0][t][r], acc[t][r]);
    }
  }
};

struct Q4Words : Words {
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
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    const uint16_t* scales = (const uint16_t*)at.scales + at.first_row;
    const VF zero_point = vf_set1(-8.0f);
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VF d = vf_load_half(scales + r * kLanes);
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        VF centred = vf_fma_at(zero_point, at.extras(t), s[0][t][r]);
        acc[t][r] = vf_fma(d, centred, acc[t][r]);
      }
    }
  }
};

struct Q41Words : Q4Words {
  static constexpr int kScaleBytes = 128;
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    const uint16_t* scales = (const uint16_t*)at.scales + at.first_row;
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VF d = vf_load_half(scales + r * kLanes);
      VF m = vf_load_half(scales + kPanelRows + r * kLanes);
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        acc[t][r] = vf_fma(d, s[0][t][r], acc[t][r]);
        acc[t][r] = vf_fma_at(m, at.extras(t), acc[t][r]);
      }
    }
  }
};

// Panel order of a 4-bit chunk: position 8w + 2b + h is byte b of word w, h = 1 the high nibble,
// which is element 4w + b + 16h. Position p stands at bit 4 * (p % 4) after the word's shift.
[[maybe_unused]] void pack_row_q4(const float* x, int64_t cols, float* out) {
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
    sums[k / kChunk * kExtras] = (part[0] + part[2]) + (part[1] + part[3]);
  }
}

}  // namespace
}  // namespace ft

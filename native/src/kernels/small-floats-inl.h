// The 4-bit and 8-bit floats of quantised releases: E2M1 and E4M3 words with E8M0, E4M3 or float32
// scales. Element order is that of the row (mxfp4_gguf: see pack_row_mxfp4_gguf).
//
// A NaN weight or scale makes its row NaN for every token. Looking for one must not cost much, so
// the largest code of a row is kept (watch) and looked at once, at the end.
namespace ft {
namespace {

constexpr float kE4M3Unit = 1.329227995784916e36f;  // 2^120: from exponent bias 127 to 7

// E4M3 codes at the top of the 16-bit halves of v -> their value times 2^-120 as bfloat16 bits,
// subnormals included.
FT_INLINE VI e4m3_halves(VI v) { return vi_and(vi_sra16<4>(v), vi_set1((int32_t)0x87f087f0)); }

// E4M3 codes in the low byte of each lane, times `unit` times 2^-120.
FT_INLINE VF e4m3_scale(VI codes, float unit) {
  VI bits = vi_and(vi_sra<4>(vi_shl<24>(codes)), vi_set1((int32_t)0x87f00000));
  return vf_mul(vi_as_f(bits), vf_set1(unit));
}

// E8M0 codes in the low byte of each lane. The codes 0 and 255 are those that need the top
// fraction bit: 2^-127 is subnormal, and infinity with a fraction is NaN.
FT_INLINE VF e8m0_scale(VI codes) {
  VI next = vi_and(vi_add(codes, vi_set1(1)), vi_set1(0xfe));
  VI is_edge = vi_shr<31>(vi_add(next, vi_set1(-1)));
  return vi_as_f(vi_add(vi_shl<23>(codes), vi_shl<22>(is_edge)));
}

FT_INLINE VI largest_code(VI seen, VI codes) {
  return vi_max_u8(seen, vi_and(codes, vi_set1(0x7f7f7f7f)));
}

// Lanes of which some byte is the NaN code 0x7f become NaN.
template <int T, int R>
FT_INLINE void poison(VF (*acc)[R], const VI* seen) {
  const VF nan = vi_as_f(vi_set1(0x7fc00000)), zero = vf_set1(0.0f);
  FT_UNROLL
  for (int r = 0; r < R; ++r) {
    VI tops = vi_and(vi_add(seen[r], vi_set1(0x01010101)), vi_set1((int32_t)0x80808080));
    VF bad = vi_to_f(vi_shr<7>(tops));
    FT_UNROLL
    for (int t = 0; t < T; ++t) acc[t][r] = vf_if_less(zero, bad, nan, acc[t][r]);
  }
}

// acc (*)= a float32 for each row at the start of the panel.
template <int T, int R, bool divide>
FT_INLINE void apply_row_factors(const uint8_t* panel, int first_row, VF (*acc)[R]) {
  FT_UNROLL
  for (int r = 0; r < R; ++r) {
    VF g = vf_load((const float*)panel + first_row + r * kLanes);
    FT_UNROLL
    for (int t = 0; t < T; ++t) acc[t][r] = divide ? vf_div(acc[t][r], g) : vf_mul(acc[t][r], g);
  }
}

struct E2m1Words : Words {
  static constexpr int kWordElements = 8;
  template <int e>
  FT_INLINE VF element(VI v) {
    return vi_e2m1<e>(v);
  }
};

struct Mxfp4Words : E2m1Words {
  static constexpr int kScaleBytes = 64, kJoined = 2;
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    const VF unit = vf_set1(kE2m1Unit);
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VF d = e8m0_scale(vi_load_u8(at.scales + at.first_row + r * kLanes));
      FT_UNROLL
      for (int t = 0; t < T; ++t) {
        VF sum = s[0][t][r];
        if constexpr (kE2m1Unit != 1.0f) sum = vf_mul(sum, unit);  // d may be too small to take it
        acc[t][r] = vf_fma(d, sum, acc[t][r]);
      }
    }
  }
};

template <bool divide>
struct Nvfp4Words : E2m1Words {
  static constexpr bool kTail = true, kSplit = true;
  static constexpr int kScaleBytes = 64;
  FT_INLINE int64_t header_bytes(int64_t) { return 4 * kPanelRows; }
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI* seen) {
    FT_UNROLL
    for (int half = 0; half < 2; ++half) {
      FT_UNROLL
      for (int r = 0; r < R; ++r) {
        VI codes = vi_load_u8(at.scales + half * kPanelRows + at.first_row + r * kLanes);
        seen[r] = largest_code(seen[r], codes);
        VF d = e4m3_scale(codes, kE4M3Unit * kE2m1Unit);
        FT_UNROLL
        for (int t = 0; t < T; ++t) acc[t][r] = vf_fma(d, s[half][t][r], acc[t][r]);
      }
    }
  }
  template <int T, int R>
  FT_INLINE void end(const uint8_t* panel, int first_row, VF (*acc)[R], const VI* seen) {
    apply_row_factors<T, R, divide>(panel, first_row, acc);
    poison<T, R>(acc, seen);
  }
};

struct E4m3Words : Words {
  static constexpr bool kTail = true, kWatch = true;
  static constexpr int kWordElements = 4;
  template <int e>
  FT_INLINE VF element(VI v) {
    VI halves = e4m3_halves(e % 2 == 0 ? vi_shl16<8>(v) : v);
    VI bits = e < 2 ? vi_shl<16>(halves) : vi_and(halves, vi_set1((int32_t)0xffff0000));
    return vf_mul(vi_as_f(bits), vf_set1(kE4M3Unit));
  }
  FT_INLINE VI watch(VI seen, VI v) { return largest_code(seen, v); }
};

struct Fp8TensorWords : E4m3Words {
  FT_INLINE int64_t header_bytes(int64_t) { return 4 * kPanelRows; }
  template <int T, int R>
  FT_INLINE void end(const uint8_t* panel, int first_row, VF (*acc)[R], const VI* seen) {
    apply_row_factors<T, R, false>(panel, first_row, acc);
    poison<T, R>(acc, seen);
  }
};

// The header holds, for every kScaleBlock columns, the scale of rows 0-15 and that of rows 16-31.
struct Fp8BlockWords : E4m3Words {
  FT_INLINE int64_t header_bytes(int64_t cols) { return scale_block_header_bytes(cols); }
  template <int T, int R>
  FT_INLINE void finish(const ChunkAt& at, VF (*s)[T][R], VF (*acc)[R], VI*) {
    const float* scales = (const float*)at.panel + at.k / kScaleBlock * 2;
    FT_UNROLL
    for (int r = 0; r < R; ++r) {
      VF d = vf_set1(scales[(at.first_row + r * kLanes) / kPairRows]);
      FT_UNROLL
      for (int t = 0; t < T; ++t) acc[t][r] = vf_fma(d, s[0][t][r], acc[t][r]);
    }
  }
  template <int T, int R>
  FT_INLINE void end(const uint8_t*, int, VF (*acc)[R], const VI* seen) {
    poison<T, R>(acc, seen);
  }
};

// GGUF's order of nibbles, as pack_row_q4 has it; nothing is scaled and the sums are not used.
[[maybe_unused]] void pack_row_mxfp4_gguf(const float* x, int64_t cols, float* out) {
  for (int64_t k = 0; k < cols; k += kChunk) {
    for (int i = 0; i < 16; ++i) {
      out[k + 2 * i] = x[k + i];
      out[k + 2 * i + 1] = x[k + 16 + i];
    }
    out[cols + k / kChunk * kExtras] = 0.0f;
  }
}

}  // namespace
}  // namespace ft

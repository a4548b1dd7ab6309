// The most multiply-adds that products of a format could make: their instruction alone, on registers
// and one number from the cache, with nothing to unpack, scale or fetch.
namespace ft {
namespace {

constexpr int kPeakSums = 12;

#if defined(FT_HAVE_DOTS)
FT_INLINE int peak_kind(int format) {
  if (format == kF32 || format == kF16) return 0;
  return format == kBf16 || format == kFp8Tensor || format == kFp8Block ? 1 : 2;
}
#else
FT_INLINE int peak_kind(int) { return 0; }
#endif

// `rounds` rounds; returns the multiply-adds of one. sink keeps the compiler from leaving them out.
int64_t peak_products(int format, [[maybe_unused]] bool int8, int64_t rounds, float* sink) {
  alignas(64) float number[16] = {0};
  const int kind = peak_kind(format);
  VF sums[kPeakSums];
  FT_UNROLL
  for (int i = 0; i < kPeakSums; ++i) sums[i] = vf_set1(0.0f);
  const VF w = vf_set1(0.5f);
#if defined(FT_HAVE_DOTS)
  VI whole[kPeakSums];
  FT_UNROLL
  for (int i = 0; i < kPeakSums; ++i) whole[i] = vi_set1(0);
  if (kind == 1) {
    for (int64_t round = 0; round < rounds; ++round) {
      FT_UNROLL
      for (int i = 0; i < kPeakSums; ++i)
        sums[i] = vf_dot_at(vf_as_i(w), (const uint16_t*)number + i, sums[i]);
    }
  } else if (kind == 2) {
    for (int64_t round = 0; round < rounds; ++round) {
      FT_UNROLL
      for (int i = 0; i < kPeakSums; ++i)
        whole[i] = vi_dot_at(vf_as_i(w), (const uint8_t*)number + 4 * i, whole[i]);
    }
  }
  FT_UNROLL
  for (int i = 0; i < kPeakSums; ++i) sums[i] = vf_add(sums[i], vi_to_f(whole[i]));
#endif
  if (kind == 0) {
    for (int64_t round = 0; round < rounds; ++round) {
      FT_UNROLL
      for (int i = 0; i < kPeakSums; ++i) sums[i] = vf_fma_at(w, number + i, sums[i]);
    }
  }
  FT_UNROLL
  for (int i = 1; i < kPeakSums; ++i) sums[0] = vf_add(sums[0], sums[i]);
  *sink = vf_sum(sums[0]);
  // integers: two bytes of an activation, so two instructions for four multiply-adds of a lane
  const int lane = kind == 0 ? 1 : kind == 2 && int8 ? 4 : 2;
  return kPeakSums * kLanes * lane;
}

}  // namespace
}  // namespace ft

// AVX2 + FMA + F16C: 8 lanes.
#include <immintrin.h>

#include "targets/vec_common.h"

namespace ft {
namespace {

typedef __m256 VF;
typedef __m256i VI;

constexpr int kLanes = 8;
constexpr int kTileTokens = 4;
constexpr int kTileRegs = 2;
constexpr int kTileRegs1 = 4;

FT_INLINE VF vf_load(const float* p) { return _mm256_loadu_ps(p); }
FT_INLINE void vf_store(float* p, VF v) { _mm256_storeu_ps(p, v); }
FT_INLINE VF vf_set1(float x) { return _mm256_set1_ps(x); }
FT_INLINE VF vf_add(VF a, VF b) { return _mm256_add_ps(a, b); }
FT_INLINE VF vf_sub(VF a, VF b) { return _mm256_sub_ps(a, b); }
FT_INLINE VF vf_mul(VF a, VF b) { return _mm256_mul_ps(a, b); }
FT_INLINE VF vf_div(VF a, VF b) { return _mm256_div_ps(a, b); }
FT_INLINE VF vf_fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
// a * *p + c
FT_INLINE VF vf_fma_at(VF a, const float* p, VF c) { return vf_fma(a, vf_set1(*p), c); }
FT_INLINE VF vf_max(VF a, VF b) { return _mm256_max_ps(a, b); }
FT_INLINE VF vf_min(VF a, VF b) { return _mm256_min_ps(a, b); }
FT_INLINE VF vf_if_less(VF a, VF b, VF x, VF y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
FT_INLINE float vf_sum(VF v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
FT_INLINE float vf_top(VF v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

FT_INLINE VI vi_load(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
FT_INLINE VI vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
FT_INLINE VI vi_and(VI a, VI b) { return _mm256_and_si256(a, b); }
FT_INLINE VI vi_add(VI a, VI b) { return _mm256_add_epi32(a, b); }
template <int n>
FT_INLINE VI vi_shl(VI a) {
  return _mm256_slli_epi32(a, n);
}
template <int n>
FT_INLINE VI vi_shr(VI a) {
  return _mm256_srli_epi32(a, n);
}
template <int n>
FT_INLINE VI vi_sra(VI a) {
  return _mm256_srai_epi32(a, n);
}
FT_INLINE VI vi_or(VI a, VI b) { return _mm256_or_si256(a, b); }
FT_INLINE VI vi_shift_right(VI a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
// Bits first .. first + 3 of each lane become bit 4 of its four bytes.
FT_INLINE VI vi_spread_bits(VI a, int first) {
  VI bits = vi_and(vi_shift_right(a, first), vi_set1(15));
  bits = vi_or(bits, vi_shl<7>(bits));
  bits = vi_or(bits, vi_shl<14>(bits));
  return vi_shl<4>(vi_and(bits, vi_set1(0x01010101)));
}
template <int n>
FT_INLINE VI vi_shl16(VI a) {
  return _mm256_slli_epi16(a, n);
}
template <int n>
FT_INLINE VI vi_sra16(VI a) {
  return _mm256_srai_epi16(a, n);
}
FT_INLINE VI vi_max_u8(VI a, VI b) { return _mm256_max_epu8(a, b); }
FT_INLINE VI vi_load_u8(const void* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
FT_INLINE VI vi_load_s8(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
FT_INLINE VF vi_to_f(VI a) { return _mm256_cvtepi32_ps(a); }
FT_INLINE VF vi_as_f(VI a) { return _mm256_castsi256_ps(a); }
FT_INLINE VI vf_as_i(VF a) { return _mm256_castps_si256(a); }
FT_INLINE VI vf_round(VF a) { return _mm256_cvtps_epi32(a); }

FT_INLINE VF vi_low_nibble(VI w) { return vi_to_f(vi_and(w, vi_set1(15))); }

// Nibble e of each lane as E2M1, in units of kE2m1Unit: twice the value as a byte (one shuffle for
// four nibbles), moved to the top of the lane.
constexpr float kE2m1Unit = 1.0f / (1 << 25);
template <int e>
FT_INLINE VF vi_e2m1(VI w) {
  const VI doubled = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12, 0, 1,
                                      2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const VI nibbles = vi_and(e % 2 == 0 ? w : vi_shr<4>(w), vi_set1(0x0f0f0f0f));
  const VI bytes = _mm256_shuffle_epi8(doubled, nibbles);
  const VI top = vi_set1((int32_t)0xff000000);
  if constexpr (e / 2 == 0) return vi_to_f(vi_shl<24>(bytes));
  if constexpr (e / 2 == 3) return vi_to_f(vi_and(bytes, top));
  return vi_to_f(vi_and(vi_shl<(24 - 8 * (e / 2)) & 31>(bytes), top));
}

FT_INLINE VF vf_load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}
FT_INLINE __m128i low16(VI w) {
  __m256i low = _mm256_and_si256(w, _mm256_set1_epi32(0xffff));
  __m256i packed = _mm256_packus_epi32(low, low);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
FT_INLINE VF vi_low_half(VI w) { return _mm256_cvtph_ps(low16(w)); }
FT_INLINE VF vf_load_bf16(const uint16_t* p) {
  return vi_as_f(vi_shl<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p))));
}
FT_INLINE void vi_store_low16(uint16_t* p, VI v) { _mm_storeu_si128((__m128i*)p, low16(v)); }

FT_INLINE void transpose8(const float* src, int64_t stride, float* dst) {
  __m256 a[8], b[8];
  FT_UNROLL
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(src + i * stride);
  FT_UNROLL
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  FT_UNROLL
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  FT_UNROLL
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(dst + i * 16, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(dst + (i + 4) * 16, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}
FT_INLINE void transpose16(const float* src, int64_t stride, float* dst) {
  for (int r = 0; r < 16; r += 8)
    for (int c = 0; c < 16; c += 8) transpose8(src + r * stride + c, stride, dst + c * 16 + r);
}

}  // namespace
}  // namespace ft

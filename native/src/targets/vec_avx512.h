// AVX-512 F, BW, VL, DQ: 16 lanes.
#include <immintrin.h>

#include "targets/vec_common.h"

namespace ft {
namespace {

typedef __m512 VF;
typedef __m512i VI;

constexpr int kLanes = 16;
constexpr int kTileTokens = 8;
constexpr int kTileRegs = 2;
constexpr int kTileRegs1 = 2;

FT_INLINE VF vf_load(const float* p) { return _mm512_loadu_ps(p); }
FT_INLINE void vf_store(float* p, VF v) { _mm512_storeu_ps(p, v); }
FT_INLINE VF vf_set1(float x) { return _mm512_set1_ps(x); }
FT_INLINE VF vf_add(VF a, VF b) { return _mm512_add_ps(a, b); }
FT_INLINE VF vf_sub(VF a, VF b) { return _mm512_sub_ps(a, b); }
FT_INLINE VF vf_mul(VF a, VF b) { return _mm512_mul_ps(a, b); }
FT_INLINE VF vf_div(VF a, VF b) { return _mm512_div_ps(a, b); }
FT_INLINE VF vf_fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
// a * *p + c. The broadcast inside the instruction is free, while one into a register takes a
// vector pipe: on Zen 4, q4_1 in cache, one thread, one token went from 14.9 to 17.1 GB/s and 64
// tokens from 92 to 101 GFLOP/s. Compilers share the register among uses, hence the assembly.
FT_INLINE VF vf_fma_at(VF a, const float* p, VF c) {
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(a), "m"(*p));
  return c;
}
FT_INLINE VF vf_max(VF a, VF b) { return _mm512_max_ps(a, b); }
FT_INLINE VF vf_min(VF a, VF b) { return _mm512_min_ps(a, b); }
FT_INLINE VF vf_if_less(VF a, VF b, VF x, VF y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
FT_INLINE __m256 fold_high(VF v) { return _mm512_extractf32x8_ps(v, 1); }
FT_INLINE float vf_sum(VF v) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), fold_high(v));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
FT_INLINE float vf_top(VF v) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), fold_high(v));
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

FT_INLINE VI vi_load(const void* p) { return _mm512_loadu_si512(p); }
FT_INLINE VI vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
FT_INLINE VI vi_and(VI a, VI b) { return _mm512_and_si512(a, b); }
FT_INLINE VI vi_add(VI a, VI b) { return _mm512_add_epi32(a, b); }
template <int n>
FT_INLINE VI vi_shl(VI a) {
  return _mm512_slli_epi32(a, n);
}
template <int n>
FT_INLINE VI vi_shr(VI a) {
  return _mm512_srli_epi32(a, n);
}
template <int n>
FT_INLINE VI vi_sra(VI a) {
  return _mm512_srai_epi32(a, n);
}
FT_INLINE VI vi_or(VI a, VI b) { return _mm512_or_si512(a, b); }
FT_INLINE VI vi_shift_right(VI a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
// Bits first .. first + 3 of each lane become bit 4 of its four bytes.
FT_INLINE VI vi_spread_bits(VI a, int first) {
  VI bits = vi_and(vi_shift_right(a, first), vi_set1(15));
  bits = vi_or(bits, vi_shl<7>(bits));
  bits = vi_or(bits, vi_shl<14>(bits));
  return vi_shl<4>(vi_and(bits, vi_set1(0x01010101)));
}
template <int n>
FT_INLINE VI vi_shl16(VI a) {
  return _mm512_slli_epi16(a, n);
}
template <int n>
FT_INLINE VI vi_sra16(VI a) {
  return _mm512_srai_epi16(a, n);
}
FT_INLINE VI vi_max_u8(VI a, VI b) { return _mm512_max_epu8(a, b); }
FT_INLINE VI vi_load_u8(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
FT_INLINE VI vi_load_s8(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
}
FT_INLINE VF vi_to_f(VI a) { return _mm512_cvtepi32_ps(a); }
FT_INLINE VF vi_as_f(VI a) { return _mm512_castsi512_ps(a); }
FT_INLINE VI vf_as_i(VF a) { return _mm512_castps_si512(a); }
FT_INLINE VI vf_round(VF a) { return _mm512_cvtps_epi32(a); }

// The lowest 4 bits of each lane as a number: a table look-up, which needs no mask.
FT_INLINE VF vi_low_nibble(VI w) {
  const VF numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_permutexvar_ps(w, numbers);
}

// Nibble e of each lane as E2M1, in units of kE2m1Unit. The look-up uses 4 bits of an index.
constexpr float kE2m1Unit = 1.0f;
template <int e>
FT_INLINE VF vi_e2m1(VI w) {
  const VF values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                   -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  return _mm512_permutexvar_ps(vi_shr<4 * e>(w), values);
}

#if defined(FT_HAVE_DOTS)
// *p is a pair of bfloat16, w pairs too: c + w.low * p.low + w.high * p.high in every lane.
FT_INLINE VF vf_dot_at(VI w, const uint16_t* p, VF c) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(w), "m"(*(const float*)p));
  return c;
}
// The same of a's and b's pairs.
FT_INLINE VF vf_dot(VI a, VI b, VF c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
// Four unsigned bytes times four signed bytes at p, added to every lane.
FT_INLINE VI vi_dot_at(VI w, const uint8_t* p, VI c) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(c) : "v"(w), "m"(*(const int32_t*)p));
  return c;
}
// Two int16 times two int16 at p, added to every lane.
FT_INLINE VI vi_dot16_at(VI w, const uint8_t* p, VI c) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(c) : "v"(w), "m"(*(const int32_t*)p));
  return c;
}
FT_INLINE void vi_store(void* p, VI v) { _mm512_storeu_si512(p, v); }
// Of the lanes of a (0 .. 15) and b (16 .. 31) those named.
FT_INLINE VF vf_pick(VF a, VF b, const int32_t* lanes) {
  return _mm512_permutex2var_ps(a, _mm512_load_si512(lanes), b);
}
FT_INLINE VI vi_mul(VI a, VI b) { return _mm512_mullo_epi32(a, b); }
FT_INLINE VI vi_mul16(VI a, VI b) { return _mm512_mullo_epi16(a, b); }
FT_INLINE VI vi_sub16(VI a, VI b) { return _mm512_sub_epi16(a, b); }
template <int n>
FT_INLINE VI vi_shr16(VI a) {
  return _mm512_srli_epi16(a, n);
}
FT_INLINE VI vi_xor(VI a, VI b) { return _mm512_xor_si512(a, b); }
FT_INLINE VF vf_mul_at(VF a, const float* p) {
  VF c;
  asm("vmulps %2%{1to16%}, %1, %0" : "=v"(c) : "v"(a), "m"(*p));
  return c;
}
#define FT_FOUR_TIMES(...) {__VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__}
// Twice the E2M1 values plus 12, and 0 .. 15. A look-up uses 6 bits of an index: no mask is needed.
alignas(64) const uint8_t kE2m1Bytes[64] =
    FT_FOUR_TIMES(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
alignas(64) const uint8_t kNumberBytes[64] =
    FT_FOUR_TIMES(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
FT_INLINE VI vi_lookup_bytes(VI index, const uint8_t* table) {
  return _mm512_permutexvar_epi8(index, _mm512_load_si512(table));
}
// Two vectors of floats that are bfloat16 already -> pairs.
FT_INLINE VI vi_join_halves(VF low, VF high) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(low), 16),
                                 _mm512_castps_si512(high));
}
// E4M3 codes in bytes p and p + 2 of every lane. Subnormals too: the multiplication makes them
// normal before they meet an instruction that takes subnormals for zero.
template <int p>
FT_INLINE VI vi_e4m3_halves(VI v) {
  const VI halves = _mm512_and_si512(
      _mm512_srai_epi16(p == 0 ? _mm512_slli_epi16(v, 8) : v, 4), _mm512_set1_epi32(0x87f087f0));
  const VF unit = vf_set1(1.329227995784916e36f);
  const VF low = vf_mul(_mm512_castsi512_ps(_mm512_slli_epi32(halves, 16)), unit);
  const VI top = _mm512_and_si512(halves, _mm512_set1_epi32((int32_t)0xffff0000));
  return vi_join_halves(low, vf_mul(_mm512_castsi512_ps(top), unit));
}
// Words of a and b: 0 .. 15 of both in turn, 16 .. 31.
template <int half>
FT_INLINE VI vi_interleave16(VI a, VI b) {
  alignas(64) static constexpr uint16_t order[32] = {
      0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const VI from = _mm512_add_epi16(_mm512_load_si512(order), _mm512_set1_epi16(16 * half));
  return _mm512_permutex2var_epi16(a, from, b);
}
// 32 floats to bfloat16, to nearest even.
FT_INLINE VI vi_halves(VF low, VF high) { return (VI)_mm512_cvtne2ps_pbh(high, low); }
FT_INLINE void vi_store_halves(uint16_t* to, const float* from) {
  vi_store(to, vi_halves(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)));
}
// 2^x for x <= 0, exactly 0 far below; its error of 3e-6 is a thousandth of a bfloat16's.
FT_INLINE VF vf_exp2_short(VF x) {
  x = vf_max(vf_set1(-200.0f), x);  // in this order NaN stays
  const VF n = _mm512_roundscale_ps(x, 8), r = vf_sub(x, n);
  VF p = vf_set1(0.00958285304f);
  p = vf_fma(p, r, vf_set1(0.0559064247f));
  p = vf_fma(p, r, vf_set1(0.240240986f));
  p = vf_fma(p, r, vf_set1(0.693124193f));
  return _mm512_scalef_ps(vf_fma(p, r, vf_set1(1.0f)), n);
}
// The largest integer that an activation of so many bytes becomes.
template <int bytes>
constexpr int kSteps = bytes == 2 ? 32512 : 127;
// The largest size of 32 * chunks floats, NaN where one is not finite.
FT_INLINE float vf_largest(const float* from, int chunks) {
  VF nothing = _mm512_setzero_ps(), largest = nothing;
  for (int i = 0; i < 32 * chunks; i += 16) {
    const VF v = _mm512_loadu_ps(from + i);
    nothing = vf_fma(v, _mm512_setzero_ps(), nothing);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(v));
  }
  const float zero = vf_sum(nothing);
  return zero != zero ? zero : vf_top(largest);
}
// 32 floats in units of `largest` / steps.
template <int steps>
FT_INLINE void vi_count_steps(const float* from, float largest, VI* part) {
  const VF each = _mm512_set1_ps(largest > 1e-30f ? (float)steps / largest : 0.0f);
  for (int i = 0; i < 2; ++i) part[i] = vf_round(vf_mul(_mm512_loadu_ps(from + 16 * i), each));
}
// The same as signed bytes, upper and lower ones where there are two; the sums of the first and the
// last 16. All are 0 where `largest` is NaN.
template <int bytes, int steps = kSteps<bytes>>
FT_INLINE void vi_store_chunk(uint8_t* to, const float* from, float largest, int32_t* sums) {
  if (largest != largest) {
    memset(to, 0, 32 * bytes);
    sums[0] = sums[1] = 0;
    return;
  }
  VI part[2];
  vi_count_steps<steps>(from, largest, part);
  for (int i = 0; i < 2; ++i) {
    sums[i] = _mm512_reduce_add_epi32(part[i]);
    VI lower = part[i];
    if constexpr (bytes == 2) {
      const VI upper = _mm512_srai_epi32(_mm512_add_epi32(lower, vi_set1(128)), 8);
      _mm_storeu_si128((__m128i*)(to + 16 * i), _mm512_cvtepi32_epi8(upper));
      lower = _mm512_sub_epi32(lower, _mm512_slli_epi32(upper, 8));
    }
    _mm_storeu_si128((__m128i*)(to + 32 * (bytes - 1) + 16 * i), _mm512_cvtepi32_epi8(lower));
  }
}
// The same in units of their own largest; returns the unit, NaN where a value is not finite.
template <int bytes>
FT_INLINE float vi_store_bytes(uint8_t* to, const float* from, int32_t* sums) {
  const float largest = vf_largest(from, 1);
  vi_store_chunk<bytes>(to, from, largest, sums);
  return largest / (float)kSteps<bytes>;
}
// Sums of the lanes of 8 vectors.
FT_INLINE __m256i vi_eight_sums(const VI* v) {
  __m256i half[8];
  for (int i = 0; i < 8; ++i)
    half[i] = _mm256_add_epi32(_mm512_castsi512_si256(v[i]), _mm512_extracti64x4_epi64(v[i], 1));
  for (int i = 0; i < 4; ++i) half[i] = _mm256_hadd_epi32(half[2 * i], half[2 * i + 1]);
  const __m256i a = _mm256_hadd_epi32(half[0], half[1]), b = _mm256_hadd_epi32(half[2], half[3]);
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}
// 256 floats in units of their largest / steps as int16, elements 0, 2, 1, 3 of every four, and the
// sum of each 32. Returns the largest, NaN where one is not finite: all is 0 then. May write where it
// reads.
template <int steps>
FT_INLINE float vi_store_pairs(uint8_t* to, const float* from, int32_t* sums) {
  alignas(64) static constexpr uint16_t order[32] = {
      0,  4,  2,  6,  8,  12, 10, 14, 16, 20, 18, 22, 24, 28, 26, 30,
      32, 36, 34, 38, 40, 44, 42, 46, 48, 52, 50, 54, 56, 60, 58, 62};
  VF v[16];
  VI largest_bits = _mm512_setzero_si512(), added[8];
  for (int i = 0; i < 16; ++i) {
    v[i] = _mm512_loadu_ps(from + 16 * i);
    const VI bits = _mm512_castps_si512(_mm512_abs_ps(v[i]));
    largest_bits = _mm512_max_epu32(largest_bits, bits);
  }
  const uint32_t bits = _mm512_reduce_max_epu32(largest_bits);
  const bool finite = bits < 0x7f800000u;
  float largest;
  const uint32_t kept = finite ? bits : 0x7fc00000u;
  memcpy(&largest, &kept, sizeof largest);
  const VF each = _mm512_set1_ps(finite && largest > 1e-30f ? (float)steps / largest : 0.0f);
  const __mmask16 all = finite ? 0xffff : 0;
  for (int i = 0; i < 8; ++i) {
    const VI low = _mm512_maskz_mov_epi32(all, vf_round(vf_mul(v[2 * i], each)));
    const VI high = _mm512_maskz_mov_epi32(all, vf_round(vf_mul(v[2 * i + 1], each)));
    added[i] = _mm512_add_epi32(low, high);
    _mm512_storeu_si512(to + 64 * i,
                        _mm512_permutex2var_epi16(low, _mm512_load_si512(order), high));
  }
  _mm256_storeu_si256((__m256i*)sums, vi_eight_sums(added));
  return largest;
}
// Eight int32 in units of their largest / 32512, as upper and lower bytes, and as int16. Returns the
// unit.
FT_INLINE float vi_shorten(const int32_t* from, uint8_t* upper, uint8_t* lower, int16_t* both) {
  const __m256 sums = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i*)from));
  const __m256 sizes = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), sums);
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(sizes), _mm256_extractf128_ps(sizes, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  const float largest = _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
  const float each = largest > 0 ? 32512.0f / largest : 0.0f;
  const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(sums, _mm256_set1_ps(each)));
  const __m256i top = _mm256_srai_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(128)), 8);
  _mm_storel_epi64((__m128i*)upper, _mm256_cvtepi32_epi8(top));
  _mm_storel_epi64((__m128i*)lower, _mm256_cvtepi32_epi8(whole));
  _mm_storeu_si128((__m128i*)both, _mm256_cvtepi32_epi16(whole));
  return largest / 32512.0f;
}
#endif

FT_INLINE VF vf_load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
FT_INLINE VF vi_low_half(VI w) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(w)); }
FT_INLINE VF vf_load_bf16(const uint16_t* p) {
  return vi_as_f(vi_shl<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p))));
}
FT_INLINE void vi_store_low16(uint16_t* p, VI v) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(v));
}

// Sixteen rows of sixteen words from src on; c[i]: word i of every row.
FT_INLINE void load_columns(const float* src, int64_t stride, VF c[16]) {
  __m512 a[16], b[16];
  FT_UNROLL
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(src + i * stride);
  FT_UNROLL
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  FT_UNROLL
  for (int i = 0; i < 16; i += 4) {  // a[i + c]: column c of every 4-lane group, rows i..i+3
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  FT_UNROLL
  for (int i = 0; i < 4; ++i) {
    __m512 even_low = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88);  // groups 0, 2 of rows 0-7
    __m512 odd_low = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);   // groups 1, 3
    __m512 even_high = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88);
    __m512 odd_high = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
    c[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
    c[4 + i] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    c[8 + i] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
    c[12 + i] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}

FT_INLINE void transpose16(const float* src, int64_t stride, float* dst) {
  VF c[16];
  load_columns(src, stride, c);
  FT_UNROLL
  for (int i = 0; i < 16; ++i) vf_store(dst + i * 16, c[i]);
}

}  // namespace
}  // namespace ft

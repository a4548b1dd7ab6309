// The baseline vector layer: 4 lanes of compiler vectors, any CPU. The test oracle of the others.
// VF = 4 floats, VI = 4 int32. vf_fma rounds twice here, since the baseline has no fused form.
#include "targets/vec_common.h"

namespace ft {
namespace {

typedef float VF __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));
typedef uint32_t VU __attribute__((vector_size(16)));
typedef int16_t VI16 __attribute__((vector_size(16)));
typedef uint16_t VU16 __attribute__((vector_size(16)));
typedef uint8_t VU8 __attribute__((vector_size(16)));

constexpr int kLanes = 4;
constexpr int kTileTokens = 2;  // tokens of the widest tile
constexpr int kTileRegs = 4;    // row vectors of a tile
constexpr int kTileRegs1 = 4;   // row vectors of a one-token tile

FT_INLINE VF vf_load(const float* p) {
  VF v;
  memcpy(&v, p, sizeof v);
  return v;
}
FT_INLINE void vf_store(float* p, VF v) { memcpy(p, &v, sizeof v); }
FT_INLINE VF vf_set1(float x) { return VF{x, x, x, x}; }
FT_INLINE VF vf_add(VF a, VF b) { return a + b; }
FT_INLINE VF vf_sub(VF a, VF b) { return a - b; }
FT_INLINE VF vf_mul(VF a, VF b) { return a * b; }
FT_INLINE VF vf_div(VF a, VF b) { return a / b; }
FT_INLINE VF vf_fma(VF a, VF b, VF c) { return a * b + c; }
// a * *p + c
FT_INLINE VF vf_fma_at(VF a, const float* p, VF c) { return vf_fma(a, vf_set1(*p), c); }
FT_INLINE VF vf_max(VF a, VF b) { return a > b ? a : b; }
FT_INLINE VF vf_min(VF a, VF b) { return a < b ? a : b; }
// a < b ? x : y
FT_INLINE VF vf_if_less(VF a, VF b, VF x, VF y) { return a < b ? x : y; }
FT_INLINE float vf_sum(VF v) { return (v[0] + v[2]) + (v[1] + v[3]); }
FT_INLINE float vf_top(VF v) {
  float a = v[0] > v[2] ? v[0] : v[2];
  float b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

FT_INLINE VI vi_load(const void* p) {
  VI v;
  memcpy(&v, p, sizeof v);
  return v;
}
FT_INLINE VI vi_set1(int32_t x) { return VI{x, x, x, x}; }
FT_INLINE VI vi_and(VI a, VI b) { return a & b; }
FT_INLINE VI vi_add(VI a, VI b) { return a + b; }
template <int n>
FT_INLINE VI vi_shl(VI a) {
  return (VI)((VU)a << n);
}
template <int n>
FT_INLINE VI vi_shr(VI a) {
  return (VI)((VU)a >> n);
}
template <int n>
FT_INLINE VI vi_sra(VI a) {
  return a >> n;
}
FT_INLINE VI vi_or(VI a, VI b) { return a | b; }
FT_INLINE VI vi_shift_right(VI a, int n) { return (VI)((VU)a >> (uint32_t)n); }
// Bits first .. first + 3 of each lane become bit 4 of its four bytes.
FT_INLINE VI vi_spread_bits(VI a, int first) {
  const VU bits = ((VU)a >> (uint32_t)first) & 15;
  return (VI)(((bits | bits << 7 | bits << 14 | bits << 21) & 0x01010101) << 4);
}
// The same for the 16-bit halves of each lane.
template <int n>
FT_INLINE VI vi_shl16(VI a) {
  return (VI)((VU16)a << n);
}
template <int n>
FT_INLINE VI vi_sra16(VI a) {
  return (VI)((VI16)a >> n);
}
// The larger of each pair of unsigned bytes.
FT_INLINE VI vi_max_u8(VI a, VI b) { return (VI)((VU8)a > (VU8)b ? (VU8)a : (VU8)b); }
// One byte for each lane.
FT_INLINE VI vi_load_u8(const uint8_t* p) { return VI{p[0], p[1], p[2], p[3]}; }
FT_INLINE VI vi_load_s8(const int8_t* p) { return VI{p[0], p[1], p[2], p[3]}; }
FT_INLINE VF vi_to_f(VI a) { return __builtin_convertvector(a, VF); }
FT_INLINE VF vi_as_f(VI a) { return (VF)a; }
FT_INLINE VI vf_as_i(VF a) { return (VI)a; }
FT_INLINE VF vi_low_nibble(VI w) { return vi_to_f(w & 15); }
// Nibble e of each lane as E2M1, in units of kE2m1Unit.
constexpr float kE2m1Unit = 1.0f;
constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
template <int e>
FT_INLINE VF vi_e2m1(VI w) {
  const VI n = vi_shr<4 * e>(w) & 15;
  return VF{kE2m1Values[n[0]], kE2m1Values[n[1]], kE2m1Values[n[2]], kE2m1Values[n[3]]};
}
// Nearest integer of |a| < 2^22.
FT_INLINE VI vf_round(VF a) {
  VF magic = vf_set1(12582912.0f);
  return (VI)(a + magic) - (VI)magic;
}

FT_INLINE float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16;
  uint32_t rest = (uint32_t)(h & 0x7fff) << 13;
  uint32_t exponent = rest & 0x0f800000;
  float value;
  uint32_t bits;
  if (exponent == 0x0f800000) {
    bits = rest + 0x70000000;  // inf and nan
    memcpy(&value, &bits, 4);
  } else if (exponent == 0) {
    bits = rest + 0x38800000;  // subnormal: borrow a leading one, subtract it again
    memcpy(&value, &bits, 4);
    value -= 6.103515625e-05f;
  } else {
    bits = rest + 0x38000000;
    memcpy(&value, &bits, 4);
  }
  memcpy(&bits, &value, 4);
  bits |= sign;
  memcpy(&value, &bits, 4);
  return value;
}
FT_INLINE VF vf_load_half(const uint16_t* p) {
  return VF{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
// The float16 in the low 16 bits of every word.
FT_INLINE VF vi_low_half(VI w) {
  return VF{half_to_float((uint16_t)w[0]), half_to_float((uint16_t)w[1]),
            half_to_float((uint16_t)w[2]), half_to_float((uint16_t)w[3])};
}
FT_INLINE VF vf_load_bf16(const uint16_t* p) {
  VU v{(uint32_t)p[0] << 16, (uint32_t)p[1] << 16, (uint32_t)p[2] << 16, (uint32_t)p[3] << 16};
  return (VF)v;
}
// Low 16 bits of each lane.
FT_INLINE void vi_store_low16(uint16_t* p, VI v) {
  for (int i = 0; i < 4; ++i) p[i] = (uint16_t)v[i];
}
// dst[c * 16 + r] = src[r * stride + c], 16 x 16.
FT_INLINE void transpose16(const float* src, int64_t stride, float* dst) {
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < 16; ++c) dst[c * 16 + r] = src[r * stride + c];
}

}  // namespace
}  // namespace ft

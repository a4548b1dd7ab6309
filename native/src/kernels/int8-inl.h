// Activations of 8 bits for targets without integer products: a row is rounded as those targets round
// it (ints-inl.h, k-quants-inl.h) and then multiplied as any row of floats. The same option, near the
// same result, and no faster than without it.
namespace ft {
namespace {

// The largest size of `count` floats, NaN where one is not finite.
FT_INLINE float largest_of(const float* x, int64_t count) {
  float largest = 0, nothing = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float size = x[i] < 0 ? -x[i] : x[i];
    largest = size > largest ? size : largest;
    nothing += x[i] * 0.0f;
  }
  return nothing == nothing ? largest : nothing;
}

// A chunk in units of `largest` / 127, as floats; zeros behind `count`.
FT_INLINE void round_chunk(const float* x, int64_t count, float largest, float* rounded) {
  memset(rounded, 0, 4 * kChunk);
  memcpy(rounded, x, 4 * (size_t)count);
  const VF each = vf_set1(largest > 1e-30f ? 127.0f / largest : 0.0f);
  const VF unit = vf_set1(largest / 127.0f);
  for (int i = 0; i < kChunk; i += kLanes)
    vf_store(rounded + i, vf_mul(vi_to_f(vf_round(vf_mul(vf_load(rounded + i), each))), unit));
}

// Rounds `elements` at a time in units of their own, then packs as `pack` does. May write where it
// reads: out = x.
template <PackRow pack, int elements>
void pack_int8(const float* x, int64_t cols, float* out) {
  alignas(64) float rounded[kChunk], packed[kChunk + kExtras];
  float largest = 0;
  for (int64_t k = 0; k < cols; k += kChunk) {
    const int64_t left = cols - k, count = left < kChunk ? left : kChunk;
    if (k % elements == 0) largest = largest_of(x + k, left < elements ? left : elements);
    round_chunk(x + k, count, largest, rounded);
    if constexpr (pack != nullptr) {
      pack(rounded, kChunk, packed);
      memcpy(out + k, packed, 4 * (size_t)count);
      memcpy(out + cols + k / kChunk * kExtras, packed + kChunk, 4 * kExtras);
    } else {
      memcpy(out + k, rounded, 4 * (size_t)count);
    }
  }
}

constexpr int kKElements = 256;

}  // namespace
}  // namespace ft

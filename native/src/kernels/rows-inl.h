// Row operations: store, weighted sums, RMS norm, rotary embedding, bf16 and q8_0 rounding.
namespace ft {
namespace {

void store(const float* y, const float* bias, float* out, int32_t rows, bool accumulate) {
  if (rows == kPanelRows) {
    FT_UNROLL
    for (int i = 0; i < kPanelRows; i += kLanes) {
      VF v = vf_load(y + i);
      if (bias) v = vf_add(v, vf_load(bias + i));
      if (accumulate) v = vf_add(vf_load(out + i), v);
      vf_store(out + i, v);
    }
    return;
  }
  for (int i = 0; i < rows; ++i) {
    float v = bias ? y[i] + bias[i] : y[i];
    out[i] = accumulate ? out[i] + v : v;
  }
}

FT_INLINE float fma1(float a, float b, float c) {
  float lanes[kLanes];
  vf_store(lanes, vf_fma(vf_set1(a), vf_set1(b), vf_set1(c)));
  return lanes[0];
}

void weighted_sum(const float* parts, int64_t stride, const float* weights, int64_t count,
                  float* out, int32_t n, bool accumulate) {
  constexpr int kSums = 8;  // a part is read piece by piece: memory likes long runs
  int i = 0;
  for (; i + kSums * kLanes <= n; i += kSums * kLanes) {
    VF sum[kSums];
    FT_UNROLL
    for (int j = 0; j < kSums; ++j) sum[j] = vf_set1(0.0f);
    for (int64_t s = 0; s < count; ++s) {
      const VF weight = vf_set1(weights[s]);
      const float* part = parts + s * stride + i;
      FT_UNROLL
      for (int j = 0; j < kSums; ++j) sum[j] = vf_fma(weight, vf_load(part + j * kLanes), sum[j]);
    }
    FT_UNROLL
    for (int j = 0; j < kSums; ++j) {
      float* to = out + i + j * kLanes;
      vf_store(to, accumulate ? vf_add(vf_load(to), sum[j]) : sum[j]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    VF sum = vf_set1(0.0f);
    for (int64_t s = 0; s < count; ++s)
      sum = vf_fma(vf_set1(weights[s]), vf_load(parts + s * stride + i), sum);
    if (accumulate) sum = vf_add(vf_load(out + i), sum);
    vf_store(out + i, sum);
  }
  for (; i < n; ++i) {
    float sum = 0;
    for (int64_t s = 0; s < count; ++s) sum = fma1(weights[s], parts[s * stride + i], sum);
    out[i] = accumulate ? out[i] + sum : sum;
  }
}

float rms_scale(const float* x, int64_t n, float eps) {
  VF sum[4];
  FT_UNROLL
  for (int j = 0; j < 4; ++j) sum[j] = vf_set1(0.0f);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    FT_UNROLL
    for (int j = 0; j < 4; ++j) {
      VF v = vf_load(x + i + j * kLanes);
      sum[j] = vf_fma(v, v, sum[j]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    VF v = vf_load(x + i);
    sum[0] = vf_fma(v, v, sum[0]);
  }
  float total = vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
  for (; i < n; ++i) total += x[i] * x[i];
  return 1.0f / __builtin_sqrtf(total / (float)n + eps);
}

void norm_row(const float* x, const float* weight, float* out, int64_t n, float eps, bool add_one) {
  const float scale = rms_scale(x, n, eps);
  const VF scales = vf_set1(scale), one = vf_set1(add_one ? 1.0f : 0.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    VF w = vf_add(one, vf_load(weight + i));
    vf_store(out + i, vf_mul(vf_mul(vf_load(x + i), scales), w));
  }
  for (; i < n; ++i) out[i] = x[i] * scale * (add_one ? 1.0f + weight[i] : weight[i]);
}

void add_row(const float* x, float* residual, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    vf_store(residual + i, vf_add(vf_load(residual + i), vf_load(x + i)));
  for (; i < n; ++i) residual[i] += x[i];
}

void rope(float* x, const float* cos, const float* sin, int64_t half, bool interleaved) {
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    VF a = vf_load(x + i), b = vf_load(x + half + i);
    VF c = vf_load(cos + i), s = vf_load(sin + i);
    vf_store(x + i, vf_sub(vf_mul(a, c), vf_mul(b, s)));
    vf_store(x + half + i, vf_add(vf_mul(b, c), vf_mul(a, s)));
  }
  for (; i < half; ++i) {
    float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

// Round to nearest even; NaN stays NaN.
FT_INLINE uint16_t bf16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void to_bf16(const float* x, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_of(x[i]);
}

// The float16 nearest to a value that is not negative, ties to even; NaN stays NaN.
FT_INLINE uint16_t half_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return 0x7e00;
  if (bits >= 0x477ff000) return 0x7c00;  // 65520 and above
  if (bits < 0x38800000) {                // below 2^-14: the last bit of 0.5 is a subnormal's unit
    value += 0.5f;
    memcpy(&bits, &value, 4);
    return (uint16_t)(bits - 0x3f000000);
  }
  return (uint16_t)((bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13);
}

// Groups whose largest value is tiny are zeros: their scale is 0 as float16 anyway.
void to_q8(const float* x, int8_t* out, uint16_t* scales, int64_t n) {
  const VF zero = vf_set1(0.0f), half = vf_set1(0.5f);
  for (int64_t g = 0; g < n; g += kKvGroup) {
    VF largest = zero, nothing = zero;  // nothing: 0, or NaN where a value is not finite
    for (int i = 0; i < kKvGroup; i += kLanes) {
      const VF v = vf_load(x + g + i);
      largest = vf_max(largest, vf_max(v, vf_sub(zero, v)));
      nothing = vf_add(nothing, vf_mul(v, zero));
    }
    const bool finite = vf_sum(nothing) == 0.0f;
    const float scale = vf_top(largest) / 127.0f;
    scales[g / kKvGroup] = finite ? half_of(scale) : 0x7e00;
    if (!finite || !(scale > 1e-30f)) {
      memset(out + g, 0, kKvGroup);
      continue;
    }
    const VF inverse = vf_set1(1.0f / scale);
    float rounded[kKvGroup];
    for (int i = 0; i < kKvGroup; i += kLanes) {
      const VF v = vf_mul(vf_load(x + g + i), inverse);
      vf_store(rounded + i, vf_if_less(v, zero, vf_sub(v, half), vf_add(v, half)));
    }
    for (int i = 0; i < kKvGroup; ++i) out[g + i] = (int8_t)(int32_t)rounded[i];
  }
}

}  // namespace
}  // namespace ft

// exp and the activations, float32, one polynomial for every target.
namespace ft {
namespace {

// exp(x): 2^n * p(r) with r = x - n ln 2 in two parts; below -87.33 it is 0, above 88.37 it stays
// at exp(88.37). Error under 2 ulp. NaN stays NaN: of what vf_max and vf_min get, they
// keep the second then.
FT_INLINE VF vf_exp(VF x) {
  VF clamped = vf_min(vf_set1(88.37f), vf_max(vf_set1(-87.33f), x));
  VI n = vf_round(vf_mul(clamped, vf_set1(1.44269504f)));
  VF nf = vi_to_f(n);
  VF r = vf_fma(nf, vf_set1(-0.693359375f), clamped);
  r = vf_fma(nf, vf_set1(2.12194440e-4f), r);
  VF p = vf_set1(1.0f / 5040);
  p = vf_fma(p, r, vf_set1(1.0f / 720));
  p = vf_fma(p, r, vf_set1(1.0f / 120));
  p = vf_fma(p, r, vf_set1(1.0f / 24));
  p = vf_fma(p, r, vf_set1(1.0f / 6));
  p = vf_fma(p, r, vf_set1(0.5f));
  p = vf_fma(vf_mul(p, r), r, r);
  p = vf_add(p, vf_set1(1.0f));
  VI power = vi_shl<23>(vi_add(n, vi_set1(127)));
  VF result = vf_mul(p, vi_as_f(power));
  return vf_if_less(x, vf_set1(-87.33f), vf_set1(0.0f), result);
}

FT_INLINE float exp1(float x) {
  float lanes[kLanes];
  vf_store(lanes, vf_exp(vf_set1(x)));
  return lanes[0];
}

// x * sigmoid(alpha * x)
FT_INLINE VF swish(VF x, VF alpha) {
  VF e = vf_exp(vf_mul(x, vf_sub(vf_set1(0.0f), alpha)));
  return vf_div(x, vf_add(vf_set1(1.0f), e));
}

FT_INLINE VF activate(VF gate, VF up, const GluSpec* spec) {
  const VF one = vf_set1(1.0f), zero = vf_set1(0.0f);
  switch (spec->activation) {
    case 1: {  // gelu, tanh form: x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3))
      VF cubed = vf_mul(vf_mul(gate, gate), gate);
      VF inner = vf_fma(vf_set1(0.044715f), cubed, gate);
      VF e = vf_exp(vf_mul(inner, vf_set1(-1.5957691216f)));
      return vf_mul(vf_div(gate, vf_add(one, e)), up);
    }
    case 2: {  // relu squared
      VF positive = vf_max(gate, zero);
      return vf_mul(vf_mul(positive, positive), up);
    }
    case 3: {  // clamped swiglu: gate <= limit, |up| <= limit, (up + 1) * swish(gate)
      VF limit = vf_set1(spec->limit);
      VF g = vf_min(gate, limit);
      VF u = vf_max(vf_min(up, limit), vf_sub(zero, limit));
      return vf_mul(vf_add(u, one), swish(g, vf_set1(spec->alpha)));
    }
    default:
      return vf_mul(swish(gate, one), up);
  }
}

void glu(const float* y, const GluSpec* spec, float* h) {
  for (int i = 0; i < kPairRows; i += kLanes)
    vf_store(h + i, activate(vf_load(y + i), vf_load(y + kPairRows + i), spec));
}

}  // namespace
}  // namespace ft

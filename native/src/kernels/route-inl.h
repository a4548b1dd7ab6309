// Scores of a token's experts and the best of them.
namespace ft {
namespace {

constexpr int kMinusInfinity = (int)0xff800000;

// scores[i] = exp(logits[i] - largest); returns their sum: NaN where a logit is NaN or +infinity,
// which vf_exp alone would hide.
FT_INLINE float softmax_terms(const float* logits, int64_t n, float* scores) {
  VF top = vi_as_f(vi_set1(kMinusInfinity));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) top = vf_max(vf_load(logits + i), top);
  float largest = vf_top(top);
  for (; i < n; ++i) largest = logits[i] > largest ? logits[i] : largest;
  const VF shift = vf_set1(largest);
  VF sums = vf_set1(0.0f), checks = sums;
  for (i = 0; i + kLanes <= n; i += kLanes) {
    VF below = vf_sub(vf_load(logits + i), shift);
    VF e = vf_exp(below);
    vf_store(scores + i, e);
    sums = vf_add(sums, e);
    checks = vf_add(checks, below);
  }
  float sum = vf_sum(sums), check = vf_sum(checks);
  for (; i < n; ++i) {
    scores[i] = exp1(logits[i] - largest);
    sum += scores[i];
    check += logits[i] - largest;
  }
  return check == check ? sum : check;
}

FT_INLINE void sigmoids(const float* logits, int64_t n, float* scores) {
  const VF zero = vf_set1(0.0f), one = vf_set1(1.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    vf_store(scores + i, vf_div(one, vf_add(one, vf_exp(vf_sub(zero, vf_load(logits + i))))));
  for (; i < n; ++i) scores[i] = 1.0f / (1.0f + exp1(-logits[i]));
}

// What decides about expert i. Both scores rise with the logit, which knows more than a rounded
// score.
FT_INLINE float route_key(const float* logits, const float* scores, const RouteSpec* spec,
                          float factor, int64_t i) {
  float key = spec->bias ? scores[i] * factor + spec->bias[i] : logits[i];
  return key == key ? key : -__builtin_inff();
}

void route(const float* logits, const RouteSpec* spec, float* scores, int32_t* ids,
           float* weights) {
  float factor = 1.0f;
  if (spec->is_sigmoid) {
    sigmoids(logits, spec->experts, scores);
  } else {
    factor = 1.0f / softmax_terms(logits, spec->experts, scores);
  }
  // weights holds the keys of the best so far, in falling order; equal ones in order of ids.
  int64_t count = 0;
  for (int64_t i = 0; i < spec->experts; ++i) {
    const float key = route_key(logits, scores, spec, factor, i);
    if (count == spec->slots && !(key > weights[count - 1])) continue;
    int64_t at = count < spec->slots ? count++ : count - 1;
    for (; at > 0 && key > weights[at - 1]; --at) {
      weights[at] = weights[at - 1];
      ids[at] = ids[at - 1];
    }
    weights[at] = key;
    ids[at] = (int32_t)i;
  }
  float sum = 0.0f;
  for (int64_t s = 0; s < count; ++s) {
    const float logit = logits[ids[s]];
    weights[s] = logit == logit ? scores[ids[s]] * factor : logit;
    sum += weights[s];
  }
  for (int64_t s = 0; s < count; ++s)
    weights[s] = (spec->normalize ? weights[s] / sum : weights[s]) * spec->scale;
}

}  // namespace
}  // namespace ft

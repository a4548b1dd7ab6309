// Layers that keep a state: short convolutions and the delta rule. Lanes are channels or columns of
// a state, so a number never depends on its neighbours.
namespace ft {
namespace {

FT_INLINE float sigmoid_times(float gate, float up) { return gate / (1.0f + exp1(-gate)) * up; }

// out = silu(gate) * up
void silu_times(const float* gate, const float* up, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    vf_store(out + i, vf_mul(swish(vf_load(gate + i), vf_set1(1.0f)), vf_load(up + i)));
  for (; i < n; ++i) out[i] = sigmoid_times(gate[i], up[i]);
}

void multiply_rows(const float* a, const float* b, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) vf_store(out + i, vf_mul(vf_load(a + i), vf_load(b + i)));
  for (; i < n; ++i) out[i] = a[i] * b[i];
}

void conv_row(const ConvRun* run) {
  const VF one = vf_set1(1.0f);
  int64_t i = 0;
  for (; i + kLanes <= run->channels; i += kLanes) {
    VF sum = vf_mul(vf_load(run->rows[0] + i), vf_load(run->weight + i));
    for (int64_t tap = 1; tap < run->taps; ++tap)
      sum = vf_add(sum, vf_mul(vf_load(run->rows[tap] + i),
                               vf_load(run->weight + tap * run->weight_stride + i)));
    if (run->bias) sum = vf_add(sum, vf_load(run->bias + i));
    vf_store(run->out + i, run->silu ? swish(sum, one) : sum);
  }
  for (; i < run->channels; ++i) {
    float sum = run->rows[0][i] * run->weight[i];
    for (int64_t tap = 1; tap < run->taps; ++tap)
      sum += run->rows[tap][i] * run->weight[tap * run->weight_stride + i];
    if (run->bias) sum += run->bias[i];
    run->out[i] = run->silu ? sigmoid_times(sum, 1.0f) : sum;
  }
}

// N registers of columns from column j on.
template <int N>
FT_INLINE void delta_columns(const DeltaRun* run, int64_t j) {
  const VF decay = vf_set1(run->decay);
  VF found[N], change[N], out[N];
  FT_UNROLL
  for (int n = 0; n < N; ++n) found[n] = out[n] = vf_set1(0.0f);
  float* row = run->state + j;
  for (int64_t i = 0; i < run->key_dim; ++i, row += run->value_dim) {
    const VF k = vf_set1(run->k[i]);
    FT_UNROLL
    for (int n = 0; n < N; ++n)
      found[n] = vf_fma(vf_mul(decay, vf_load(row + n * kLanes)), k, found[n]);
  }
  const VF beta = vf_set1(run->beta);
  FT_UNROLL
  for (int n = 0; n < N; ++n)
    change[n] = vf_mul(beta, vf_sub(vf_load(run->v + j + n * kLanes), found[n]));
  row = run->state + j;
  for (int64_t i = 0; i < run->key_dim; ++i, row += run->value_dim) {
    const VF k = vf_set1(run->k[i]), q = vf_set1(run->q[i]);
    FT_UNROLL
    for (int n = 0; n < N; ++n) {
      const VF next = vf_fma(k, change[n], vf_mul(decay, vf_load(row + n * kLanes)));
      vf_store(row + n * kLanes, next);
      out[n] = vf_fma(next, q, out[n]);
    }
  }
  FT_UNROLL
  for (int n = 0; n < N; ++n) vf_store(run->out + j + n * kLanes, out[n]);
}

FT_INLINE void delta_column(const DeltaRun* run, int64_t j) {
  float found = 0, out = 0;
  float* at = run->state + j;
  for (int64_t i = 0; i < run->key_dim; ++i) found += run->decay * at[i * run->value_dim] * run->k[i];
  const float change = run->beta * (run->v[j] - found);
  for (int64_t i = 0; i < run->key_dim; ++i) {
    const float next = run->decay * at[i * run->value_dim] + run->k[i] * change;
    at[i * run->value_dim] = next;
    out += next * run->q[i];
  }
  run->out[j] = out;
}

void delta_step(const DeltaRun* run) {
  int64_t j = 0;
  for (; j + 4 * kLanes <= run->value_dim; j += 4 * kLanes) delta_columns<4>(run, j);
  for (; j + kLanes <= run->value_dim; j += kLanes) delta_columns<1>(run, j);
  for (; j < run->value_dim; ++j) delta_column(run, j);
}

}  // namespace
}  // namespace ft

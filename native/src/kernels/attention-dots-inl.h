// Attention over bfloat16 pages with products of pairs (see dots-inl.h): keys and values are used
// as they are, queries and weights are rounded to bfloat16, and sums stay float32.
//
// Scores: pairs of head_dim, a page's words transposed once for all rows. Values: pairs of keys, a
// few pages interleaved once for all rows. What a row gets does not depend on the other rows of its
// block, as in attention-inl.h.
namespace ft {
namespace {

constexpr int kPairDims = 32;   // head_dim is a multiple
constexpr int kValuePages = 4;  // interleaved at a time
constexpr int kValuePairs = kValuePages * kPageTokens / 2;

// What the scratch of a run holds. Interleaved values lie where transposed keys lay.
struct PairScratch {
  float* keys;        // [head_dim / 2][16] words
  uint8_t* values;    // [head_dim / 16][kValuePairs][16] words
  float* scores;      // [rows][kSplitKeys], later weights: as many bfloat16 at the start of a row
  uint16_t* queries;  // [rows][head_dim]
};

FT_INLINE PairScratch pair_scratch(const AttendRun* run) {
  float* scores = run->scratch + 2 * kPageTokens * run->padded_dim;
  return {run->scratch, (uint8_t*)run->scratch, scores,
          (uint16_t*)(scores + (int64_t)run->rows * kSplitKeys)};
}

FT_INLINE const uint16_t* page_of(const AttendRun* run, const void* pool, int index) {
  return (const uint16_t*)pool + (int64_t)run->pages[index] * run->page_stride + run->head_offset;
}

template <int M>
FT_INLINE void score_pairs(const AttendRun* run, const PairScratch& at, int row, float* scores) {
  VF s[M];
  const uint16_t* q[M];
  FT_UNROLL
  for (int m = 0; m < M; ++m) {
    q[m] = at.queries + (int64_t)(row + m) * run->head_dim;
    s[m] = vf_set1(0.0f);
  }
  for (int d = 0; d < run->head_dim; d += 2) {
    const VI keys = vi_load(at.keys + d / 2 * kPageTokens);
    FT_UNROLL
    for (int m = 0; m < M; ++m) s[m] = vf_dot_at(keys, q[m] + d, s[m]);
  }
  FT_UNROLL
  for (int m = 0; m < M; ++m)
    vf_store(scores + (int64_t)(row + m) * kSplitKeys, vf_mul(s[m], vf_set1(run->scale)));
}

template <int M>
FT_INLINE void value_pairs(const AttendRun* run, const PairScratch& at, int row, int first_key,
                           int pairs) {
  const uint16_t* w[M];
  FT_UNROLL
  for (int m = 0; m < M; ++m)
    w[m] = (const uint16_t*)(at.scores + (int64_t)(row + m) * kSplitKeys) + first_key;
  const uint8_t* values = at.values;
  float* to = run->acc + (int64_t)row * run->padded_dim;
  for (int d = 0; d < run->head_dim; d += kLanes, values += kValuePairs * 64) {
    VF acc[M];
    FT_UNROLL
    for (int m = 0; m < M; ++m) acc[m] = vf_load(to + m * run->padded_dim + d);
    for (int p = 0; p < pairs; ++p) {
      const VI value = vi_load(values + p * 64);
      FT_UNROLL
      for (int m = 0; m < M; ++m) acc[m] = vf_dot_at(value, w[m] + 2 * p, acc[m]);
    }
    FT_UNROLL
    for (int m = 0; m < M; ++m) vf_store(to + m * run->padded_dim + d, acc[m]);
  }
}

// Values of `keys` keys from those of page `index`, pairs of keys one behind the other.
FT_INLINE void interleave_values(const AttendRun* run, int index, int keys, uint8_t* to) {
  const VI nothing = vi_set1(0);
  for (int key = 0; key < keys; key += 2) {
    const uint16_t* first =
        page_of(run, run->v_pool, index + key / kPageTokens) + key % kPageTokens * run->head_dim;
    uint8_t* pair = to + key / 2 * 64;
    for (int d = 0; d < run->head_dim; d += kPairDims, pair += 2 * kValuePairs * 64) {
      const VI a = vi_load(first + d),
               b = key + 1 < keys ? vi_load(first + run->head_dim + d) : nothing;
      vi_store(pair, vi_interleave16<0>(a, b));
      vi_store(pair + kValuePairs * 64, vi_interleave16<1>(a, b));
    }
  }
}

// Weights become bfloat16, in place, and their sum that of what they became. n: multiple of 16.
FT_INLINE void round_weights(const AttendRun* run, int row, float* s, int n) {
  uint16_t* to = (uint16_t*)s;
  for (int i = n; i < (int)round_up(n, kPairDims); ++i) s[i] = 0.0f;
  VF sum = vf_set1(0.0f);
  for (int i = 0; i < n; i += kPairDims) {
    vi_store_halves(to + i, s + i);
    sum = vf_add(sum, vf_load_bf16(to + i));
    sum = vf_add(sum, vf_load_bf16(to + i + kLanes));
  }
  run->sum[row] = vf_sum(sum);
}

void attend_pairs(const AttendRun* run) {
  const int dim = run->head_dim, words = dim / 2;
  const PairScratch at = pair_scratch(run);
  const int first_page = run->first_key / kPageTokens, skip = pages_to_skip(run);
  const int num_pages = pages_of(run);
  for (int row = 0; row < run->rows; ++row)
    for (int d = 0; d < dim; d += kPairDims)
      vi_store_halves(at.queries + (int64_t)row * dim + d, run->q[row] + d);
  for (int p = skip; p < num_pages; ++p) {
    const float* page = (const float*)page_of(run, run->k_pool, first_page + p);
    for (int w = 0; w < words; w += 16) transpose16(page + w, words, at.keys + w * kPageTokens);
    float* to = at.scores + p * kPageTokens;
    int row = 0;
    for (; row + 8 <= run->rows; row += 8) score_pairs<8>(run, at, row, to);
    for (; row + 4 <= run->rows; row += 4) score_pairs<4>(run, at, row, to);
    for (; row < run->rows; ++row) score_pairs<1>(run, at, row, to);
  }
  const int n = num_pages * kPageTokens;
  for (int row = 0; row < run->rows; ++row) {
    float* s = at.scores + (int64_t)row * kSplitKeys;
    for (int i = 0; i < skip * kPageTokens; ++i) s[i] = kMinusInf;
    softmax_row(run, row, s, n);
    round_weights(run, row, s, n);
  }
  memset(run->acc, 0, sizeof(float) * (size_t)run->rows * (size_t)run->padded_dim);
  for (int p = skip; p < num_pages; p += kValuePages) {
    const int first = p * kPageTokens, left = run->end_key - run->first_key - first;
    const int keys = left < 2 * kValuePairs ? left : 2 * kValuePairs, pairs = (keys + 1) / 2;
    interleave_values(run, first_page + p, keys, at.values);
    int row = 0;
    for (; row + 8 <= run->rows; row += 8) value_pairs<8>(run, at, row, first, pairs);
    for (; row + 4 <= run->rows; row += 4) value_pairs<4>(run, at, row, first, pairs);
    for (; row < run->rows; ++row) value_pairs<1>(run, at, row, first, pairs);
  }
}

}  // namespace
}  // namespace ft

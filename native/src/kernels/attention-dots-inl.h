// Attention over bfloat16 pages with products of pairs (see dots-inl.h): keys and values are used
// as they are, queries and weights are rounded to bfloat16, and sums stay float32.
//
// Scores: pairs of head_dim, a page's words transposed once for all rows. Values: pairs of keys, a
// few pages interleaved once for all rows. A handful of rows, as in decoding, takes both straight
// from the registers in which they were turned. What a row gets does not depend on the other rows of
// its block, as in attention-inl.h: sums are added up in the same order either way.
namespace ft {
namespace {

constexpr int kPairDims = 32;   // head_dim is a multiple
constexpr int kFewRows = 8;
constexpr int kValuePages = 4;  // interleaved at a time
constexpr int kValuePairs = kValuePages * kPageTokens / 2;

// What the scratch of a run holds. Interleaved values lie where transposed keys lay.
struct PairScratch {
  float* keys;        // [head_dim / 2][2 pages][16] words
  uint8_t* values;    // [head_dim / 32][kValuePairs][2][16] words
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

// Scores of M rows against J pages.
template <int M, int J>
FT_INLINE void score_tile(const AttendRun* run, const PairScratch& at, int row, float* scores) {
  VF s[M][J];
  const uint16_t* q[M];
  FT_UNROLL
  for (int m = 0; m < M; ++m) {
    q[m] = at.queries + (int64_t)(row + m) * run->head_dim;
    FT_UNROLL
    for (int j = 0; j < J; ++j) s[m][j] = vf_set1(0.0f);
  }
  const float* keys = at.keys;
  for (int d = 0; d < run->head_dim; d += 2, keys += 2 * kPageTokens) {
    VI k[J];
    FT_UNROLL
    for (int j = 0; j < J; ++j) k[j] = vi_load(keys + j * kPageTokens);
    FT_UNROLL
    for (int m = 0; m < M; ++m) {
      FT_UNROLL
      for (int j = 0; j < J; ++j) s[m][j] = vf_dot_at(k[j], q[m] + d, s[m][j]);
    }
  }
  const VF scale = vf_set1(run->scale);
  FT_UNROLL
  for (int m = 0; m < M; ++m) {
    FT_UNROLL
    for (int j = 0; j < J; ++j)
      vf_store(scores + (int64_t)(row + m) * kSplitKeys + j * kPageTokens, vf_mul(s[m][j], scale));
  }
}

// Scores of all rows against J pages from page p of the split on.
template <int J>
FT_INLINE void score_pages(const AttendRun* run, const PairScratch& at, int p, int num_pages) {
  const int words = run->head_dim / 2, first_page = run->first_key / kPageTokens;
  float* scores = at.scores + p * kPageTokens;
  for (int j = 0; j < J; ++j) {
    const char* ahead = page_ahead(run, p + j, num_pages, run->k_pool);
    const float* page = (const float*)page_of(run, run->k_pool, first_page + p + j);
    float* to = at.keys + j * kPageTokens;
    for (int w = 0; w < words; w += 16) {
      VF columns[16];
      load_columns(page + w, words, columns);
      ask_for(ahead, w * 64, 16 * 64);
      FT_UNROLL
      for (int i = 0; i < 16; ++i) vf_store(to + (w + i) * 2 * kPageTokens, columns[i]);
    }
  }
  int row = 0;
  for (; row + 8 <= run->rows; row += 8) score_tile<8, J>(run, at, row, scores);
  for (; row + 4 <= run->rows; row += 4) score_tile<4, J>(run, at, row, scores);
  for (; row < run->rows; ++row) score_tile<1, J>(run, at, row, scores);
}

template <int M>
FT_INLINE void value_tile(const AttendRun* run, const PairScratch& at, int row, int first_key,
                          int pairs) {
  const uint16_t* w = (const uint16_t*)(at.scores + (int64_t)row * kSplitKeys) + first_key;
  const uint8_t* values = at.values;
  float* to = run->acc + (int64_t)row * run->padded_dim;
  for (int d = 0; d < run->head_dim; d += kPairDims, to += kPairDims, values += kValuePairs * 128) {
    VF acc[M][2];
    FT_UNROLL
    for (int m = 0; m < M; ++m) {
      acc[m][0] = vf_load(to + m * run->padded_dim);
      acc[m][1] = vf_load(to + m * run->padded_dim + kLanes);
    }
    for (int p = 0; p < pairs; ++p) {
      const VI low = vi_load(values + p * 128), high = vi_load(values + p * 128 + 64);
      FT_UNROLL
      for (int m = 0; m < M; ++m) {
        const uint16_t* weight = w + m * 2 * kSplitKeys + 2 * p;
        acc[m][0] = vf_dot_at(low, weight, acc[m][0]);
        acc[m][1] = vf_dot_at(high, weight, acc[m][1]);
      }
    }
    FT_UNROLL
    for (int m = 0; m < M; ++m) {
      vf_store(to + m * run->padded_dim, acc[m][0]);
      vf_store(to + m * run->padded_dim + kLanes, acc[m][1]);
    }
  }
}

// Values of `keys` keys from those of page `index`, pairs of keys one behind the other.
FT_INLINE void interleave_values(const AttendRun* run, int index, int keys, uint8_t* to) {
  const VI nothing = vi_set1(0);
  for (int key = 0; key < keys; key += 2, to += 128) {
    const uint16_t* first =
        page_of(run, run->v_pool, index + key / kPageTokens) + key % kPageTokens * run->head_dim;
    uint8_t* pair = to;
    for (int d = 0; d < run->head_dim; d += kPairDims, pair += kValuePairs * 128) {
      const VI a = vi_load(first + d),
               b = key + 1 < keys ? vi_load(first + run->head_dim + d) : nothing;
      vi_store(pair, vi_interleave16<0>(a, b));
      vi_store(pair + 64, vi_interleave16<1>(a, b));
    }
  }
}

// Scores of all rows, M of them.
template <int M>
FT_INLINE void score_few(const AttendRun* run, const PairScratch& at, int skip, int num_pages) {
  const int words = run->head_dim / 2, first_page = run->first_key / kPageTokens;
  const VF scale = vf_set1(run->scale);
  for (int p = skip; p < num_pages; ++p) {
    const char* ahead = page_ahead(run, p, num_pages, run->k_pool);
    const float* page = (const float*)page_of(run, run->k_pool, first_page + p);
    VF s[M];
    FT_UNROLL
    for (int m = 0; m < M; ++m) s[m] = vf_set1(0.0f);
    for (int w = 0; w < words; w += 16) {
      VF keys[16];
      load_columns(page + w, words, keys);
      const uint16_t* q = at.queries + 2 * w;
      FT_UNROLL
      for (int i = 0; i < 16; ++i) {
        ask_for(ahead, (w + i) * 64, 64);
        FT_UNROLL
        for (int m = 0; m < M; ++m)
          s[m] = vf_dot_at(vf_as_i(keys[i]), q + m * run->head_dim + 2 * i, s[m]);
      }
    }
    FT_UNROLL
    for (int m = 0; m < M; ++m)
      vf_store(at.scores + m * kSplitKeys + p * kPageTokens, vf_mul(s[m], scale));
  }
}

// Adds the values of one pair of keys, 32 D dimensions from `first` on; `second` may be missing.
template <int M, int D>
FT_INLINE void add_pair(const uint16_t* first, const uint16_t* second, const float* weights,
                        VF acc[M][2 * D]) {
  FT_UNROLL
  for (int j = 0; j < D; ++j) {
    const VI a = vi_load(first + j * kPairDims),
             b = second ? vi_load(second + j * kPairDims) : vi_set1(0);
    const VI low = vi_interleave16<0>(a, b), high = vi_interleave16<1>(a, b);
    FT_UNROLL
    for (int m = 0; m < M; ++m) {
      const uint16_t* w = (const uint16_t*)(weights + m * kSplitKeys);
      acc[m][2 * j] = vf_dot_at(low, w, acc[m][2 * j]);
      acc[m][2 * j + 1] = vf_dot_at(high, w, acc[m][2 * j + 1]);
    }
  }
}

// Values of all rows, M of them, for some pages from p on; 32 D dimensions from d on. ahead: of each
// page, see page_ahead.
template <int M, int D>
FT_INLINE void value_few(const AttendRun* run, const PairScratch& at, int p, int end, int d,
                         const char* const* ahead) {
  const int first_page = run->first_key / kPageTokens, all = run->end_key - run->first_key;
  float* to = run->acc + d;
  VF acc[M][2 * D];
  FT_UNROLL
  for (int m = 0; m < M; ++m) {
    FT_UNROLL
    for (int j = 0; j < 2 * D; ++j) acc[m][j] = vf_load(to + m * run->padded_dim + j * kLanes);
  }
  for (; p < end; ++p) {
    const uint16_t* page = page_of(run, run->v_pool, first_page + p) + d;
    const int left = all - p * kPageTokens, keys = left < kPageTokens ? left : kPageTokens;
    const float* weights = at.scores + p * kPageTokens / 2;
    const char* lines = *ahead++;
    for (int key = 0; key < keys; key += 2, page += 2 * run->head_dim) {
      ask_for(lines, (d / kPairDims * kPageTokens + key * D) * 64, 2 * D * 64);
      add_pair<M, D>(page, key + 1 < keys ? page + run->head_dim : nullptr, weights + key / 2, acc);
    }
  }
  FT_UNROLL
  for (int m = 0; m < M; ++m) {
    FT_UNROLL
    for (int j = 0; j < 2 * D; ++j) vf_store(to + m * run->padded_dim + j * kLanes, acc[m][j]);
  }
}

// Scores become weights as bfloat16, in place, and their sum that of what they became. n: multiple
// of 16.
FT_INLINE void weigh_row(const AttendRun* run, int row, float* s, int n) {
  constexpr float kLog2E = 1.44269504f;
  const int all = (int)round_up(n, kPairDims);
  uint16_t* to = (uint16_t*)s;
  const float max = mask_row(run, row, s, all);
  if (max == kMinusInf) {
    run->sum[row] = 0.0f;
    memset(to, 0, sizeof(uint16_t) * (size_t)all);
    return;
  }
  const VF factor = vf_set1(kLog2E), base = vf_set1(-max * kLog2E);
  const VI ones = vi_set1(0x3f803f80);
  VF sum = vf_set1(0.0f);
  for (int i = 0; i < all; i += kPairDims) {
    const VF a = vf_exp2_short(vf_fma(vf_load(s + i), factor, base));
    const VF b = vf_exp2_short(vf_fma(vf_load(s + i + kLanes), factor, base));
    const VI pairs = vi_halves(a, b);
    vi_store(to + i, pairs);
    sum = vf_dot(pairs, ones, sum);
  }
  run->sum[row] = vf_sum(sum);
}

FT_INLINE void round_queries(const AttendRun* run, const PairScratch& at) {
  for (int row = 0; row < run->rows; ++row)
    for (int d = 0; d < run->head_dim; d += kPairDims)
      vi_store_halves(at.queries + (int64_t)row * run->head_dim + d, run->q[row] + d);
}

FT_INLINE void scores_to_weights(const AttendRun* run, const PairScratch& at, int skip,
                                 int num_pages) {
  const int n = num_pages * kPageTokens;
  for (int row = 0; row < run->rows; ++row) {
    float* s = at.scores + (int64_t)row * kSplitKeys;
    for (int i = 0; i < skip * kPageTokens; ++i) s[i] = kMinusInf;
    weigh_row(run, row, s, n);
  }
}

template <int M>
void attend_few(const AttendRun* run) {
  const PairScratch at = pair_scratch(run);
  const int skip = pages_to_skip(run), num_pages = pages_of(run);
  round_queries(run, at);
  score_few<M>(run, at, skip, num_pages);
  scores_to_weights(run, at, skip, num_pages);
  memset(run->acc, 0, sizeof(float) * (size_t)M * (size_t)run->padded_dim);
  constexpr int D = M > 4 ? 1 : 2;
  const int bytes = page_bytes(run);  // what lies in the first cache for every value_few
  const int group = bytes < kBytesAhead ? kBytesAhead / bytes : 1;
  for (int p = skip; p < num_pages; p += group) {
    const int end = p + group < num_pages ? p + group : num_pages;
    const char* ahead[kBytesAhead / (kPageTokens * kPairDims * 2)];
    for (int i = p; i < end; ++i) ahead[i - p] = page_ahead(run, i, num_pages, run->v_pool);
    int d = 0;
    for (; d + D * kPairDims <= run->head_dim; d += D * kPairDims)
      value_few<M, D>(run, at, p, end, d, ahead);
    for (; d < run->head_dim; d += kPairDims) value_few<M, 1>(run, at, p, end, d, ahead);
  }
}

void attend_pairs(const AttendRun* run) {
  using Few = void (*)(const AttendRun*);
  static constexpr Few few[kFewRows] = {attend_few<1>, attend_few<2>, attend_few<3>, attend_few<4>,
                                        attend_few<5>, attend_few<6>, attend_few<7>, attend_few<8>};
  if (run->rows <= kFewRows) return few[run->rows - 1](run);
  const PairScratch at = pair_scratch(run);
  const int first_page = run->first_key / kPageTokens, skip = pages_to_skip(run);
  const int num_pages = pages_of(run);
  round_queries(run, at);
  int p = skip;
  for (; p + 2 <= num_pages; p += 2) score_pages<2>(run, at, p, num_pages);
  if (p < num_pages) score_pages<1>(run, at, p, num_pages);
  scores_to_weights(run, at, skip, num_pages);
  memset(run->acc, 0, sizeof(float) * (size_t)run->rows * (size_t)run->padded_dim);
  for (p = skip; p < num_pages; p += kValuePages) {
    for (int i = p; i < p + kValuePages && i < num_pages; ++i)
      ask_for(page_ahead(run, i, num_pages, run->v_pool), 0, page_bytes(run));
    const int first = p * kPageTokens, left = run->end_key - run->first_key - first;
    const int keys = left < 2 * kValuePairs ? left : 2 * kValuePairs, pairs = (keys + 1) / 2;
    interleave_values(run, first_page + p, keys, at.values);
    int row = 0;
    for (; row + 8 <= run->rows; row += 8) value_tile<8>(run, at, row, first, pairs);
    for (; row + 4 <= run->rows; row += 4) value_tile<4>(run, at, row, first, pairs);
    for (; row < run->rows; ++row) value_tile<1>(run, at, row, first, pairs);
  }
}

}  // namespace
}  // namespace ft

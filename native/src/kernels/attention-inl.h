// One split of attention: rows (query, head) of a KV head against up to 256 keys.
//
// Scores: lanes are the 16 keys of a page, the page transposed once for all rows, one running sum
// over head_dim per (row, key). Values: lanes are head_dim, keys in order. A masked key has weight
// exactly 0, so a row's result does not depend on the other rows of its block.
namespace ft {
namespace {

constexpr int kPageRegs = kPageTokens / kLanes;
constexpr float kMinusInf = -__builtin_inff();

FT_INLINE void widen_q8(const int8_t* from, const uint16_t* scales, int32_t dim, float* to) {
  for (int32_t g = 0; g < dim; g += kKvGroup) {
    const VF scale = vi_low_half(vi_set1(scales[g / kKvGroup]));
    FT_UNROLL
    for (int i = 0; i < kKvGroup; i += kLanes)
      vf_store(to + g + i, vf_mul(vi_to_f(vi_load_s8(from + g + i)), scale));
  }
}

// 16 x head_dim of a pool page as float32 rows; f32 pools are used in place.
FT_INLINE const float* page_rows(const AttendRun* run, const void* pool, const uint16_t* scales,
                                 int32_t page, int32_t rows, float* buffer, int64_t* stride) {
  const int64_t offset = (int64_t)page * run->page_stride + run->head_offset;
  const int32_t dim = run->head_dim, padded = run->padded_dim;
  if (run->pool_format == kF32 && dim == padded) {
    *stride = dim;
    return (const float*)pool + offset;
  }
  *stride = padded;
  if (run->pool_format == kQ8_0) {
    for (int32_t r = 0; r < rows; ++r) {
      const int64_t at = offset + r * dim;
      widen_q8((const int8_t*)pool + at, scales + at / kKvGroup, dim, buffer + r * padded);
    }
    return buffer;
  }
  for (int32_t r = 0; r < rows; ++r) {
    float* to = buffer + r * padded;
    int32_t i = 0;
    if (run->pool_format == kBf16) {
      const uint16_t* from = (const uint16_t*)pool + offset + r * dim;
      for (; i + kLanes <= dim; i += kLanes) vf_store(to + i, vf_load_bf16(from + i));
      for (; i < dim; ++i) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, 4);
      }
    } else {
      const float* from = (const float*)pool + offset + r * dim;
      for (; i < dim; ++i) to[i] = from[i];
    }
    for (; i < padded; ++i) to[i] = 0.0f;
  }
  return buffer;
}

constexpr int kBytesAhead = 8192;

FT_INLINE int number_bytes(const AttendRun* run) {
  return run->pool_format == kF32 ? 4 : run->pool_format == kBf16 ? 2 : 1;
}

FT_INLINE int page_bytes(const AttendRun* run) {
  return kPageTokens * run->head_dim * number_bytes(run);
}

// Page p is about to be read, of keys or of values. What nobody asked for before is asked for some
// pages ahead. Returns the page's worth of the next split that is this run's to ask for meanwhile, a
// line now and then, since many at once would hold up the core; null where there is none. The runs of
// a split ask for all heads' pages in the order in which they lie, which the hardware follows too.
FT_INLINE const char* page_ahead(const AttendRun* run, int p, int num_pages, const void* pool) {
  const int64_t width = number_bytes(run);
  const int32_t* pages = run->pages + run->first_key / kPageTokens;
  const int bytes = page_bytes(run), later = p + (bytes < kBytesAhead ? kBytesAhead / bytes : 1);
  if (run->is_cold && later < num_pages) {
    const char* from =
        (const char*)pool + (pages[later] * run->page_stride + run->head_offset) * width;
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
  }
  const int piece = run->head * num_pages + p;
  if (piece >= run->pages_ahead * run->heads) return nullptr;
  const int64_t page = pages[kSplitKeys / kPageTokens + piece / run->heads];
  const int64_t head = (int64_t)kPageTokens * run->head_dim * (piece % run->heads);
  return (const char*)pool + (page * run->page_stride + run->heads_offset + head) * width;
}

// Into the second cache: the first is too small for a split.
FT_INLINE void ask_for(const char* ahead, int first, int bytes) {
  if (ahead == nullptr) return;
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + first + i, 0, 2);
}

template <int M>
FT_INLINE void score_rows(const AttendRun* run, int row, const float* kt, float* scores) {
  VF s[M][kPageRegs];
  const float* q[M];
  FT_UNROLL
  for (int m = 0; m < M; ++m) {
    q[m] = run->q[row + m];
    FT_UNROLL
    for (int j = 0; j < kPageRegs; ++j) s[m][j] = vf_set1(0.0f);
  }
  for (int d = 0; d < run->head_dim; ++d) {
    VF k[kPageRegs];
    FT_UNROLL
    for (int j = 0; j < kPageRegs; ++j) k[j] = vf_load(kt + d * kPageTokens + j * kLanes);
    FT_UNROLL
    for (int m = 0; m < M; ++m) {
      VF b = vf_set1(q[m][d]);
      FT_UNROLL
      for (int j = 0; j < kPageRegs; ++j) s[m][j] = vf_fma(k[j], b, s[m][j]);
    }
  }
  const VF scale = vf_set1(run->scale);
  FT_UNROLL
  for (int m = 0; m < M; ++m) {
    FT_UNROLL
    for (int j = 0; j < kPageRegs; ++j)
      vf_store(scores + (row + m) * kSplitKeys + j * kLanes, vf_mul(s[m][j], scale));
  }
}

template <int M>
FT_INLINE void value_rows(const AttendRun* run, int row, const float* v, int64_t stride, int keys,
                          const float* weights) {
  for (int d = 0; d < run->padded_dim; d += kPageTokens) {
    VF acc[M][kPageRegs];
    FT_UNROLL
    for (int m = 0; m < M; ++m) {
      FT_UNROLL
      for (int j = 0; j < kPageRegs; ++j)
        acc[m][j] = vf_load(run->acc + (int64_t)(row + m) * run->padded_dim + d + j * kLanes);
    }
    for (int key = 0; key < keys; ++key) {
      VF value[kPageRegs];
      FT_UNROLL
      for (int j = 0; j < kPageRegs; ++j) value[j] = vf_load(v + key * stride + d + j * kLanes);
      FT_UNROLL
      for (int m = 0; m < M; ++m) {
        VF w = vf_set1(weights[(row + m) * kSplitKeys + key]);
        FT_UNROLL
        for (int j = 0; j < kPageRegs; ++j) acc[m][j] = vf_fma(value[j], w, acc[m][j]);
      }
    }
    FT_UNROLL
    for (int m = 0; m < M; ++m) {
      FT_UNROLL
      for (int j = 0; j < kPageRegs; ++j)
        vf_store(run->acc + (int64_t)(row + m) * run->padded_dim + d + j * kLanes, acc[m][j]);
    }
  }
}

// Masks one row of scores and gives its maximum, minus infinity where no key is left. n is a multiple
// of 16.
FT_INLINE float mask_row(const AttendRun* run, int row, float* s, int n) {
  const int64_t position = run->position[row];
  int64_t low = run->window > 0 ? position - run->window + 1 - run->first_key : 0;
  int64_t high = position + 1 - run->first_key;
  low = low < 0 ? 0 : low > n ? n : low;
  high = high < 0 ? 0 : high > n ? n : high;
  for (int64_t i = 0; i < low; ++i) s[i] = kMinusInf;
  for (int64_t i = high; i < n; ++i) s[i] = kMinusInf;
  VF top = vf_set1(kMinusInf);
  for (int i = 0; i < n; i += kLanes) top = vf_max(top, vf_load(s + i));
  return run->max[row] = vf_top(top);
}

// Turns a row of scores into weights relative to its maximum.
FT_INLINE void softmax_row(const AttendRun* run, int row, float* s, int n) {
  const float max = mask_row(run, row, s, n);
  if (max == kMinusInf) {
    run->sum[row] = 0.0f;
    for (int i = 0; i < n; ++i) s[i] = 0.0f;
    return;
  }
  VF sum = vf_set1(0.0f);
  const VF maxes = vf_set1(max);
  for (int i = 0; i < n; i += kLanes) {
    VF weight = vf_exp(vf_sub(vf_load(s + i), maxes));
    vf_store(s + i, weight);
    sum = vf_add(sum, weight);
  }
  run->sum[row] = vf_sum(sum);
}

// Pages of the split.
FT_INLINE int pages_of(const AttendRun* run) {
  return (run->end_key - run->first_key + kPageTokens - 1) / kPageTokens;
}

// Those before every row's window.
FT_INLINE int pages_to_skip(const AttendRun* run) {
  if (run->window <= 0) return 0;
  int64_t low = run->position[0];
  for (int r = 1; r < run->rows; ++r) low = run->position[r] < low ? run->position[r] : low;
  low = low - run->window + 1 - run->first_key;
  const int skip = low <= 0 ? 0 : (int)(low / kPageTokens), pages = pages_of(run);
  return skip < pages ? skip : pages;
}

void attend_floats(const AttendRun* run) {
  const int32_t padded = run->padded_dim;
  float* kt = run->scratch;
  float* rows_buffer = kt + kPageTokens * padded;
  float* scores = rows_buffer + kPageTokens * padded;
  const int first_page = run->first_key / kPageTokens;
  const int num_pages = pages_of(run), skip = pages_to_skip(run);
  for (int p = skip; p < num_pages; ++p) {
    int64_t stride;
    ask_for(page_ahead(run, p, num_pages, run->k_pool), 0, page_bytes(run));
    const float* k = page_rows(run, run->k_pool, run->k_scales, run->pages[first_page + p],
                               kPageTokens, rows_buffer, &stride);
    for (int d = 0; d < padded; d += 16) transpose16(k + d, stride, kt + d * kPageTokens);
    float* to = scores + p * kPageTokens;
    int row = 0;
    for (; row + kTileTokens <= run->rows; row += kTileTokens)
      score_rows<kTileTokens>(run, row, kt, to);
    for (; row < run->rows; ++row) score_rows<1>(run, row, kt, to);
  }
  const int n = num_pages * kPageTokens;
  for (int row = 0; row < run->rows; ++row) {
    for (int i = 0; i < skip * kPageTokens; ++i) scores[row * kSplitKeys + i] = kMinusInf;
    softmax_row(run, row, scores + row * kSplitKeys, n);
  }
  memset(run->acc, 0, sizeof(float) * (size_t)run->rows * (size_t)padded);
  for (int p = skip; p < num_pages; ++p) {
    ask_for(page_ahead(run, p, num_pages, run->v_pool), 0, page_bytes(run));
    int left = run->end_key - run->first_key - p * kPageTokens;
    int keys = left < kPageTokens ? left : kPageTokens;
    int64_t stride;
    const float* v = page_rows(run, run->v_pool, run->v_scales, run->pages[first_page + p], keys,
                               rows_buffer, &stride);
    const float* weights = scores + p * kPageTokens;
    int row = 0;
    for (; row + kTileTokens <= run->rows; row += kTileTokens)
      value_rows<kTileTokens>(run, row, v, stride, keys, weights);
    for (; row < run->rows; ++row) value_rows<1>(run, row, v, stride, keys, weights);
  }
}

FT_INLINE void scale_rows(float* acc, const float* acc2, float a, float b, int32_t n) {
  const VF va = vf_set1(a), vb = vf_set1(b);
  for (int32_t i = 0; i < n; i += kLanes)
    vf_store(acc + i, vf_fma(vf_load(acc2 + i), vb, vf_mul(vf_load(acc + i), va)));
}

void attend_merge(float* max, float* sum, float* acc, const float* max2, const float* sum2,
                  const float* acc2, int32_t rows, int32_t padded) {
  for (int32_t r = 0; r < rows; ++r) {
    if (max2[r] == kMinusInf) continue;
    float* to = acc + (int64_t)r * padded;
    const float* from = acc2 + (int64_t)r * padded;
    if (max[r] == kMinusInf) {
      max[r] = max2[r];
      sum[r] = sum2[r];
      memcpy(to, from, sizeof(float) * (size_t)padded);
      continue;
    }
    const float top = max[r] > max2[r] ? max[r] : max2[r];
    const float a = exp1(max[r] - top), b = exp1(max2[r] - top);
    max[r] = top;
    sum[r] = sum[r] * a + sum2[r] * b;
    scale_rows(to, from, a, b, padded);
  }
}

void attend_finish(const float* max, const float* sum, const float* acc, const float* sink,
                   float* out, int32_t head_dim) {
  float factor = 1.0f, total = *sum;
  if (sink) {
    const float top = *max > *sink ? *max : *sink;
    factor = exp1(*max - top);
    total = *sum * factor + exp1(*sink - top);
  }
  const float scale = total > 0.0f ? factor / total : 0.0f;
  const VF scales = vf_set1(scale);
  int32_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) vf_store(out + i, vf_mul(vf_load(acc + i), scales));
  for (; i < head_dim; ++i) out[i] = acc[i] * scale;
}

}  // namespace
}  // namespace ft

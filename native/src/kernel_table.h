// What one instruction set offers: plain functions over plain pointers. No std headers: this file
// is included by the target units.
#ifndef FT_KERNEL_TABLE_H_
#define FT_KERNEL_TABLE_H_

#include <stdint.h>

namespace ft {

enum Format : int32_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kMxfp4,
  kMxfp4Gguf,
  kNvfp4,
  kNvfp4Div,
  kFp8Tensor,
  kFp8Block,
  kQ5_0,
  kQ5_1,
  kQ4K,
  kQ5K,
  kQ6K,
  kNumFormats
};

constexpr uint32_t kKFormats = 1u << kQ4K | 1u << kQ5K | 1u << kQ6K;
// Formats whose codes are integers times a scale.
constexpr uint32_t kIntFormats = 1u << kQ8_0 | 1u << kQ4_0 | 1u << kQ4_1 | 1u << kMxfp4 |
                                 1u << kMxfp4Gguf | 1u << kNvfp4 | 1u << kNvfp4Div | 1u << kQ5_0 |
                                 1u << kQ5_1 | kKFormats;

constexpr int kPanelRows = 32;
constexpr int kPairRows = 16;
constexpr int kChunk = 32;       // elements of a row that are summed before the scale is applied
constexpr int kExtras = 4;      // numbers of a packed row for each chunk
constexpr int kScaleBlock = 128;  // columns that share a scale in kFp8Block
constexpr int kPageTokens = 16;  // tokens of a KV page
constexpr int kKvGroup = 32;     // numbers of a head that share a scale in q8_0 pages
constexpr int kSplitKeys = 256;  // keys of one attention partial, cut at absolute multiples
constexpr int kMaxBlockTokens = 64;
constexpr int kManyTokens = 7;  // from which panel_many is the faster one (Zen 4, q4_k to q6_k)

// One panel against some tokens. x[t] are rows in the format's own element order (see pack_row);
// sums is the offset, in floats, of kExtras numbers for each chunk behind them (formats with
// pack_row only): the chunk's sum first, or what ints-inl.h says.
struct PanelRun {
  const uint8_t* panel;
  int64_t cols;
  const float* const* x;
  int64_t sums;
  int32_t tokens;          // at most kMaxBlockTokens
  int32_t prefetch_bytes;  // how far ahead the first tile prefetches, 0: not at all
  float* y;                // [tokens][32]
};

struct GluSpec {
  int32_t activation;
  float alpha;
  float limit;
};

// Rows (query, head) of one KV head against one split of keys.
struct AttendRun {
  const float* const* q;    // [rows] head_dim floats each
  const int32_t* position;  // [rows] absolute position of the query
  int32_t rows;
  int32_t head_dim;
  int32_t padded_dim;  // head_dim up to a multiple of 16
  int32_t pool_format;  // kF32, kBf16 or kQ8_0
  const void* k_pool;
  const void* v_pool;
  const uint16_t* k_scales;  // of q8_0 pools, one for every kKvGroup elements
  const uint16_t* v_scales;
  const int32_t* pages;  // page ids of the sequence
  int64_t page_stride;   // elements from page to page
  int64_t head_offset;   // elements from page start to this KV head
  int32_t first_key;     // absolute, multiple of kSplitKeys
  int32_t end_key;       // absolute, exclusive; at most first_key + kSplitKeys
  int32_t window;        // 0: none
  float scale;
  // Reading ahead, where keys and values come from memory: while it works on its own split, each of
  // `heads` runs asks for its share of the next.
  bool is_cold;          // nobody asked for this split
  int32_t pages_ahead;   // of the next split; 0: there is none, or reading takes no time
  int32_t head, heads;   // this run's KV head among those that lie side by side
  int64_t heads_offset;  // elements from page start to the first of them
  float* scratch;  // attend_scratch_floats(rows, padded_dim)
  float* max;      // [rows]
  float* sum;      // [rows]
  float* acc;      // [rows][padded_dim]
};

struct RouteSpec {
  int32_t is_sigmoid;
  int32_t normalize;
  int64_t experts;
  int64_t slots;
  const float* bias;  // or null
  float scale;
};

// One token of a short convolution: out = sum over taps of rows[tap] * weight[tap] (+ bias).
struct ConvRun {
  const float* const* rows;
  const float* weight;
  int64_t weight_stride;
  int64_t taps;
  const float* bias;  // or null
  float* out;
  int64_t channels;
  bool silu;
};

// One token of the delta rule of one head: S <- decay S; S <- S + k (beta (v - k^T S)); out = S^T q.
struct DeltaRun {
  float* state;  // [key_dim][value_dim]
  int64_t key_dim;
  int64_t value_dim;
  const float* q;
  const float* k;
  const float* v;
  float decay;
  float beta;
  float* out;
};

typedef void (*MultiplyPanel)(const PanelRun* run);
// Permutes, prescales and rounds a row for a MultiplyPanel, kExtras numbers for each chunk behind it.
// May write where it reads: out = x.
typedef void (*PackRow)(const float* x, int64_t cols, float* out);

// Products with the weights of each format.
struct Products {
  int32_t bits;                  // of the activations of kIntFormats
  int32_t packed_element_bytes;  // of rows that pack_row writes chunk by chunk: 4, or 2 (bfloat16)
  MultiplyPanel panel[kNumFormats];
  PackRow pack_row[kNumFormats];  // null where x is used as is
  // Faster where a panel meets kManyTokens or more, with the same results; null: there is none.
  MultiplyPanel panel_many[kNumFormats];
  PackRow pack_many[kNumFormats];
  // Bit f: pack_row[f] looks at a whole group of elements, not at one chunk.
  uint32_t packed_by_groups;
};

struct KernelTable {
  const char* target;
  // Multiply-adds of one round of the instruction that products of a format are made of, of that of
  // products[1] where int8 is true.
  int64_t (*peak_products)(int format, bool int8, int64_t rounds, float* sink);
  Products products[2];  // as the target likes them best; with activations of 8 bits
  // y[32] (+ bias) to out, `rows` of them.
  void (*store)(const float* y, const float* bias, float* out, int32_t rows, bool accumulate);
  // y = 16 gates, 16 ups -> h[16].
  void (*glu)(const float* y, const GluSpec* spec, float* h);
  // out[i] (+)= sum_s weights[s] * parts[s * stride + i] for i < n, s ascending.
  void (*weighted_sum)(const float* parts, int64_t stride, const float* weights, int64_t count,
                       float* out, int32_t n, bool accumulate);
  // Scale of an RMS norm: 1 / sqrt(mean(x^2) + eps).
  float (*rms_scale)(const float* x, int64_t n, float eps);
  void (*norm_row)(const float* x, const float* weight, float* out, int64_t n, float eps,
                   bool add_one);
  void (*add_row)(const float* x, float* residual, int64_t n);
  // Rotates the first 2 * half values: (x[i], x[i + half]) or (x[2i], x[2i + 1]).
  void (*rope)(float* x, const float* cos, const float* sin, int64_t half, bool interleaved);
  void (*to_bf16)(const float* x, uint16_t* out, int64_t n);
  // n is a multiple of kKvGroup; one float16 scale for every kKvGroup.
  void (*to_q8)(const float* x, int8_t* out, uint16_t* scales, int64_t n);
  void (*attend)(const AttendRun* run);
  // Folds a later partial into a running one: max, sum, acc as in AttendRun.
  void (*attend_merge)(float* max, float* sum, float* acc, const float* max2, const float* sum2,
                       const float* acc2, int32_t rows, int32_t padded_dim);
  // out = acc / (sum + exp(sink - max)) for one row; sink may be null.
  void (*attend_finish)(const float* max, const float* sum, const float* acc, const float* sink,
                        float* out, int32_t head_dim);
  void (*conv_row)(const ConvRun* run);
  void (*delta_step)(const DeltaRun* run);
  void (*silu_times)(const float* gate, const float* up, float* out, int64_t n);
  void (*multiply_rows)(const float* a, const float* b, float* out, int64_t n);
  // The best experts of one token; scores is scratch, [experts] up to a multiple of 16.
  void (*route)(const float* logits, const RouteSpec* spec, float* scores, int32_t* ids,
                float* weights);
};

// Keys and values of one page, the scores of one split, queries as bfloat16.
static inline int64_t attend_scratch_floats(int64_t rows, int64_t padded_dim) {
  return 2 * kPageTokens * padded_dim + rows * kSplitKeys + rows * padded_dim / 2;
}

static inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Float32 scales in front of a kFp8Block panel: two for every kScaleBlock columns.
static inline int64_t scale_block_header_bytes(int64_t cols) {
  return round_up(8 * ((cols + kScaleBlock - 1) / kScaleBlock), 64);
}

extern const KernelTable kScalarTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
extern const KernelTable kAvx512Bf16Table;

}  // namespace ft

#endif  // FT_KERNEL_TABLE_H_

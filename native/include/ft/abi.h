// The C ABI of libft_native, loaded by ftengine/kernels/native.py. Plain C: structs in, a status
// out.
//
// Every struct starts with its own size, so a library and a caller of different age notice.
// Pointers are 4-byte aligned float data unless said otherwise; packed weights (panel32.v1,
// docs/panel32.md) and scratch are 64-byte aligned. Strides count elements, not bytes. Nothing is
// kept after a call. Functions that compute run on the library's pool; concurrent callers wait for
// each other. The result for a token never depends on what else is in the batch, on tiles or on
// threads.
#ifndef FT_ABI_H_
#define FT_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
#define FT_STATIC_ASSERT static_assert
extern "C" {
#else
#define FT_STATIC_ASSERT _Static_assert
#endif

#define FT_API __attribute__((visibility("default")))
#define FT_ABI_VERSION 5

typedef int32_t ft_status;
enum {
  FT_OK = 0,
  FT_ERR_SIZE = 1,       // a struct's size field is not this library's
  FT_ERR_ARGUMENT = 2,   // a null pointer, a negative size or a shape that does not fit
  FT_ERR_FORMAT = 3,     // no kernel for this weight or cache format
  FT_ERR_ALIGN = 4,      // packed weights or scratch not 64-byte aligned
  FT_ERR_EXPERT_ID = 5,  // an expert id outside 0..num_experts-1
  FT_ERR_SCRATCH = 6,    // the caller's scratch is too small
  FT_ERR_TARGET = 7,     // the named target is not built or the CPU lacks it
  FT_ERR_MEMORY = 8,     // the library could not allocate its workspace
  FT_ERR_INDEX = 9,      // a position, slot, page or row id out of range
};

// Weight formats carry the GGML type ids; those that GGML does not have start at 1000.
enum {
  FT_F32 = 0,
  FT_F16 = 1,
  FT_Q4_0 = 2,
  FT_Q4_1 = 3,
  FT_Q5_0 = 6,
  FT_Q5_1 = 7,
  FT_Q8_0 = 8,
  FT_Q4_K = 12,
  FT_Q5_K = 13,
  FT_Q6_K = 14,
  FT_BF16 = 30,
  FT_MXFP4_GGUF = 39,  // nibble order k, k + 16
  FT_MXFP4 = 1000,     // nibble order 2k, 2k + 1
  FT_NVFP4 = 1001,     // the tensor's factor multiplies
  FT_NVFP4_DIV = 1002,  // it divides
  FT_FP8_TENSOR = 1003,
  FT_FP8_BLOCK = 1004,
};

enum { FT_ACT_SILU = 0, FT_ACT_GELU_TANH = 1, FT_ACT_RELU2 = 2, FT_ACT_SWIGLU_CLAMP = 3 };

enum {
  FT_ACCUMULATE = 1,   // out += result (linear, expert_ffn)
  FT_ADD_ONE = 2,      // rms_norm: the factor is 1 + weight
  FT_INTERLEAVED = 4,  // rope: pairs are (2i, 2i+1) instead of (i, i + rot/2)
  FT_NORMALIZE = 8,    // route: the chosen weights are divided by their sum
};

enum { FT_SCORE_SOFTMAX = 0, FT_SCORE_SIGMOID = 1 };

// Activations in products with weights whose codes are integers times a scale (q*, mxfp4, nvfp4): as
// the target does it, or as integers of 8 bits in units of the largest of 32 (K-quants: of 256) / 127.
// On targets without integer products the same rounding, and no gain.
enum { FT_ACTIVATIONS_AUTO = 0, FT_ACTIVATIONS_INT8 = 1 };

// out[t, n] (+)= sum_k x[t, k] * w[n, k] + bias[n]
//   0 size  4 format  8 x  16 x_stride  24 tokens  32 weights  40 rows (N)  48 cols (K)
//   56 bias or null  64 out  72 out_stride  80 flags  84 zero
typedef struct {
  uint32_t size;
  uint32_t format;
  const float* x;
  int64_t x_stride;
  int64_t tokens;
  const void* weights;
  int64_t rows;
  int64_t cols;
  const float* bias;
  float* out;
  int64_t out_stride;
  uint32_t flags;
  uint32_t zero;
} ft_linear_args;
FT_STATIC_ASSERT(sizeof(ft_linear_args) == 88, "layout");

// One routed layer: out[t] (+)= sum_s weight[t, s] * down(act(gate(x[t])) * up(x[t])), slots in
// order.
//   0 size  4 activation  8 format_gate_up  12 format_down  16 x  24 x_stride  32 tokens
//   40 expert_ids i32 [tokens, slots]  48 expert_weights f32 [tokens, slots]  56 slots
//   64 num_experts  72 hidden  80 inter  88 bank (row e at bank + e * row_bytes), used where
//   rows is null  96 row_bytes  104 rows: num_experts pointers or null  112 gate_up_offset
//   120 down_offset  128 out  136 out_stride  144 scratch (64-byte aligned)  152 scratch_bytes
//   160 alpha  164 limit (swiglu_clamp)  168 flags  172 zero
typedef struct {
  uint32_t size;
  uint32_t activation;
  uint32_t format_gate_up;
  uint32_t format_down;
  const float* x;
  int64_t x_stride;
  int64_t tokens;
  const int32_t* expert_ids;
  const float* expert_weights;
  int64_t slots;
  int64_t num_experts;
  int64_t hidden;
  int64_t inter;
  const void* bank;
  int64_t row_bytes;
  const void* const* rows;
  int64_t gate_up_offset;
  int64_t down_offset;
  float* out;
  int64_t out_stride;
  void* scratch;
  int64_t scratch_bytes;
  float alpha;
  float limit;
  uint32_t flags;
  uint32_t zero;
} ft_expert_ffn_args;
FT_STATIC_ASSERT(sizeof(ft_expert_ffn_args) == 176, "layout");

// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight; with residual, residual += x comes first, is
// written back, and is what is normalised.
//   0 size  4 flags  8 x  16 x_stride  24 residual or null  32 residual_stride  40 weight  48 out
//   56 out_stride  64 tokens  72 cols  80 eps  84 zero
typedef struct {
  uint32_t size;
  uint32_t flags;
  const float* x;
  int64_t x_stride;
  float* residual;
  int64_t residual_stride;
  const float* weight;
  float* out;
  int64_t out_stride;
  int64_t tokens;
  int64_t cols;
  float eps;
  uint32_t zero;
} ft_rms_norm_args;
FT_STATIC_ASSERT(sizeof(ft_rms_norm_args) == 88, "layout");

// Normalise (optional) and rotate q and k of a qkv buffer; q stays in place, k and v go to the
// pools. Pools are [num_pages, kv_heads, 16, head_dim]; a slot is page * 16 + offset, -1 stores
// nothing. FT_Q8_0 pools are int8, with a float16 scale for every 32 numbers of a head in scales
// [num_pages, kv_heads, 16, head_dim / 32]; x = scale * q, halves of q are rounded away from 0, and
// where one of the 32 is not finite the scale is NaN.
//   0 size  4 flags  8 q  16 k  24 v  32 stride (elements from token to token, for q, k and v)
//   40 tokens  48 heads  56 kv_heads  64 head_dim  72 rotary_dim  80 q_norm f32[head_dim] or null
//   88 k_norm  96 cos f32 [max_positions, rotary_dim / 2]  104 sin  112 max_positions
//   120 positions i32[tokens]  128 k_pool  136 v_pool  144 slots i64[tokens]  152 num_pages
//   160 pool_format (FT_F32, FT_BF16, FT_Q8_0)  164 eps  168 k_scales f16 or null  176 v_scales
typedef struct {
  uint32_t size;
  uint32_t flags;
  float* q;
  const float* k;
  const float* v;
  int64_t stride;
  int64_t tokens;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t rotary_dim;
  const float* q_norm;
  const float* k_norm;
  const float* cos;
  const float* sin;
  int64_t max_positions;
  const int32_t* positions;
  void* k_pool;
  void* v_pool;
  const int64_t* slots;
  int64_t num_pages;
  uint32_t pool_format;
  float eps;
  uint16_t* k_scales;
  uint16_t* v_scales;
} ft_rope_store_args;
FT_STATIC_ASSERT(sizeof(ft_rope_store_args) == 184, "layout");

// Causal attention over paged keys. Query i of sequence s stands at position
// context_len[s] - (query_start[s+1] - query_start[s]) + i.
//   0 size  4 pool_format  8 q  16 q_stride  24 k_pool  32 v_pool  40 num_pages
//   48 query_start i32[sequences+1]  56 context_len i32[sequences]
//   64 page_table i32[sequences, max_pages]  72 sequences  80 max_pages  88 heads  96 kv_heads
//   104 head_dim  112 window (0: none)  120 sinks f32[heads] or null  128 out [T, heads * head_dim]
//   136 out_stride  144 scale  148 zero  152 k_scales f16 or null (as in rope_store)  160 v_scales
typedef struct {
  uint32_t size;
  uint32_t pool_format;
  const float* q;
  int64_t q_stride;
  const void* k_pool;
  const void* v_pool;
  int64_t num_pages;
  const int32_t* query_start;
  const int32_t* context_len;
  const int32_t* page_table;
  int64_t sequences;
  int64_t max_pages;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t window;
  const float* sinks;
  float* out;
  int64_t out_stride;
  float scale;
  uint32_t zero;
  const uint16_t* k_scales;
  const uint16_t* v_scales;
} ft_attention_args;
FT_STATIC_ASSERT(sizeof(ft_attention_args) == 168, "layout");

// out[i] = row ids[i] of a row-major (not panel) matrix, dequantised.
//   0 size  4 format  8 table  16 rows  24 cols  32 ids i64[count]  40 count  48 out  56 out_stride
typedef struct {
  uint32_t size;
  uint32_t format;
  const void* table;
  int64_t rows;
  int64_t cols;
  const int64_t* ids;
  int64_t count;
  float* out;
  int64_t out_stride;
} ft_embed_rows_args;
FT_STATIC_ASSERT(sizeof(ft_embed_rows_args) == 64, "layout");

// Experts of each token: scores over all experts, the `slots` best in falling order (the lower id
// first where they are equal, NaN last), their scores [/ their sum] * scale. With a bias, score +
// bias decides and the score alone is the weight.
//   0 size  4 score  8 logits  16 logits_stride  24 tokens  32 experts  40 slots (<= experts)
//   48 bias f32[experts] or null  56 expert_ids i32 [tokens, slots]
//   64 expert_weights f32 [tokens, slots]  72 flags  76 scale
typedef struct {
  uint32_t size;
  uint32_t score;
  const float* logits;
  int64_t logits_stride;
  int64_t tokens;
  int64_t experts;
  int64_t slots;
  const float* bias;
  int32_t* expert_ids;
  float* expert_weights;
  uint32_t flags;
  float scale;
} ft_route_args;
FT_STATIC_ASSERT(sizeof(ft_route_args) == 80, "layout");

// Where the tokens of a step stand for layers that keep a state. Span i is rows start[i] ..
// start[i + 1] - 1 of the sequence whose state is in slot[i]; the last one ends with the step. A
// slot's part lies slot * slot_stride floats behind the part of slot 0. keep[i] >= 0: the slot that
// a copy of the state after the span goes to.
//   0 start i32  8 slot i64  16 keep i64  24 slot_stride  32 num_slots
typedef struct {
  const int32_t* start;
  const int64_t* slot;
  const int64_t* keep;
  int64_t slot_stride;
  int64_t num_slots;
} ft_spans;
FT_STATIC_ASSERT(sizeof(ft_spans) == 40, "layout");

// A gated delta net between its two projections. A row of x is q | k | v | z | b | a: key_heads of
// key_dim twice, value_heads of value_dim twice, value_heads twice. q, k and v go through a short
// convolution and SiLU, q and k through an RMS norm of a head each; then, for each value head,
// S <- exp(-decay_rate softplus(a + dt_bias)) S; S <- S + k (sigmoid(b) (v - k^T S)); S^T q, which
// is normalised and multiplied by silu(z).
//   0 size  4 zero  8 x  16 x_stride  24 tokens  32 key_heads  40 value_heads  48 key_dim
//   56 value_dim  64 taps  72 conv f32 [taps, q + k + v]  80 decay_rate f64[value_heads]
//   88 dt_bias f64[value_heads]  96 q_weight f32[key_dim]  104 k_weight  112 norm_weight
//   f32[value_dim]  120 spans  160 conv_states, slot 0: f32 [taps - 1, q + k + v]  168 states,
//   slot 0: f32 [value_heads, key_dim, value_dim]  176 out [T, value_heads * value_dim]
//   184 out_stride  192 qk_eps  196 norm_eps
typedef struct {
  uint32_t size;
  uint32_t zero;
  const float* x;
  int64_t x_stride;
  int64_t tokens;
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;
  int64_t taps;
  const float* conv;
  const double* decay_rate;
  const double* dt_bias;
  const float* q_weight;
  const float* k_weight;
  const float* norm_weight;
  ft_spans spans;
  float* conv_states;
  float* states;
  float* out;
  int64_t out_stride;
  float qk_eps;
  float norm_eps;
} ft_gated_delta_args;
FT_STATIC_ASSERT(sizeof(ft_gated_delta_args) == 200, "layout");

// A row of x is B | C | x, `width` numbers each; out = C * conv(B * x).
//   0 size  4 zero  8 x  16 x_stride  24 tokens  32 width  40 taps  48 conv f32 [taps, width]
//   56 bias f32[width] or null  64 spans  104 states, slot 0: f32 [taps - 1, width]  112 out
//   120 out_stride
typedef struct {
  uint32_t size;
  uint32_t zero;
  const float* x;
  int64_t x_stride;
  int64_t tokens;
  int64_t width;
  int64_t taps;
  const float* conv;
  const float* bias;
  ft_spans spans;
  float* states;
  float* out;
  int64_t out_stride;
} ft_short_conv_args;
FT_STATIC_ASSERT(sizeof(ft_short_conv_args) == 128, "layout");

// Calls to make in this order; args is what the function of that kind takes.
enum {
  FT_OP_LINEAR = 0,
  FT_OP_EXPERT_FFN = 1,
  FT_OP_RMS_NORM = 2,
  FT_OP_ROPE_STORE = 3,
  FT_OP_ATTENTION = 4,
  FT_OP_EMBED_ROWS = 5,
  FT_OP_ROUTE = 6,
  FT_OP_GATED_DELTA = 7,
  FT_OP_SHORT_CONV = 8,
};
typedef struct {
  uint32_t kind;
  uint32_t zero;
  const void* args;
} ft_op;
FT_STATIC_ASSERT(sizeof(ft_op) == 16, "layout");

// The first call that fails ends the list, and its status is the result.
//   0 size  4 zero  8 ops  16 count  24 nanoseconds i64[count] that each call took, or null
typedef struct {
  uint32_t size;
  uint32_t zero;
  const ft_op* ops;
  int64_t count;
  int64_t* nanoseconds;
} ft_run_ops_args;
FT_STATIC_ASSERT(sizeof(ft_run_ops_args) == 32, "layout");

// Filled by ft_info.
//   0 size  4 abi_version  8 threads  12 activations  16 target (chosen)  32 targets (usable, by commas)
//   96 features (of the CPU, by commas)
typedef struct {
  uint32_t size;
  uint32_t abi_version;
  int32_t threads;
  uint32_t activations;
  char target[16];
  char targets[64];
  char features[160];
} ft_info_args;
FT_STATIC_ASSERT(sizeof(ft_info_args) == 256, "layout");

FT_API int32_t ft_abi_version(void);
// Starts the pool: num_threads workers including the caller of each function, 0 = one per CPU that
// this process may use. A second call changes the number. Detects the CPU and chooses the best
// target.
FT_API ft_status ft_init(int32_t num_threads);
FT_API ft_status ft_shutdown(void);
FT_API ft_status ft_set_target(const char* name);
// One of FT_ACTIVATIONS_*, for every target; it stays when the target or the threads change.
FT_API ft_status ft_set_activations(uint32_t kind);
// Bits of an activation in products with this weight format now: 8 or 15 (integers), 16 (bfloat16),
// 32 (float32); -1 for an unknown format.
FT_API int32_t ft_activation_bits(uint32_t format);
FT_API ft_status ft_info(ft_info_args* info);
FT_API const char* ft_status_text(ft_status status);

// Formats that need their activations permuted (q4_0, q4_1, mxfp4_gguf) and key-split attention use
// a workspace of the library, which grows to the largest call and is then kept.
FT_API ft_status ft_linear(const ft_linear_args* args);
FT_API ft_status ft_expert_ffn(const ft_expert_ffn_args* args);
// Bytes of scratch that this call needs with the current number of threads; scratch is not read.
FT_API int64_t ft_expert_ffn_scratch(const ft_expert_ffn_args* args);
FT_API ft_status ft_rms_norm(const ft_rms_norm_args* args);
FT_API ft_status ft_rope_store(const ft_rope_store_args* args);
FT_API ft_status ft_attention(const ft_attention_args* args);
FT_API ft_status ft_embed_rows(const ft_embed_rows_args* args);
FT_API ft_status ft_route(const ft_route_args* args);
FT_API ft_status ft_gated_delta(const ft_gated_delta_args* args);
FT_API ft_status ft_short_conv(const ft_short_conv_args* args);
FT_API ft_status ft_run_ops(const ft_run_ops_args* args);
// Reads `bytes` bytes with every thread; the bandwidth probe. *checksum = sum of the 64-bit words.
FT_API ft_status ft_stream_read(const void* data, int64_t bytes, uint64_t* checksum);
// The arithmetic probe: 64 times a thread, `rounds` rounds of the multiply-adds that products of this
// weight format are made of, and of nothing else. *multiply_adds = those of all threads.
FT_API ft_status ft_products(uint32_t format, int64_t rounds, int64_t* multiply_adds);
// Nanoseconds that a cache line takes from the CPU of worker 0 to that of worker 1, over `rounds`
// rounds (at least 2); 0 where there is one worker or the other one has no CPU.
FT_API ft_status ft_hand_over(int32_t rounds, double* ns);

#ifdef __cplusplus
}
#endif
#endif  // FT_ABI_H_

// What the CPU and the system offer, asked from the CPU itself: the compilers' own helpers differ
// (the one of ziglang 0.17 knows no feature at all).
#ifndef FT_CPU_INFO_H_
#define FT_CPU_INFO_H_

#include <cstdint>

namespace ft {

struct CpuInfo {
  bool avx = false, avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512vnni = false, avx512bf16 = false, avx512vbmi = false;
  bool is_amd = false;
  uint32_t family = 0;
};

// A vector feature counts only where the system saves its registers.
const CpuInfo& cpu_info();

}  // namespace ft

#endif  // FT_CPU_INFO_H_

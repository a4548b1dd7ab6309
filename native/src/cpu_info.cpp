#include "cpu_info.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ft {
namespace {

#if defined(__x86_64__)
bool bit(uint32_t value, int index) { return ((value >> index) & 1) != 0; }

// The register states that the system saves (XCR0).
uint32_t saved_states() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

CpuInfo detect() {
  CpuInfo info;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return info;
  info.is_amd = b == 0x68747541u;  // "Auth" of AuthenticAMD
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return info;
  info.family = ((a >> 8) & 15) + ((a >> 20) & 255);
  const bool saves = bit(c, 27);
  const uint32_t states = saves ? saved_states() : 0;
  const bool ymm = (states & 0x06) == 0x06, zmm = (states & 0xe6) == 0xe6;
  info.avx = ymm && bit(c, 28);
  info.fma = ymm && bit(c, 12);
  info.f16c = ymm && bit(c, 29);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return info;
  info.avx2 = ymm && bit(b, 5);
  info.avx512f = zmm && bit(b, 16);
  info.avx512dq = zmm && bit(b, 17);
  info.avx512bw = zmm && bit(b, 30);
  info.avx512vl = zmm && bit(b, 31);
  info.avx512vbmi = zmm && bit(c, 1);
  info.avx512vnni = zmm && bit(c, 11);
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) info.avx512bf16 = zmm && bit(a, 5);
  return info;
}
#else
CpuInfo detect() { return CpuInfo{}; }
#endif

}  // namespace

const CpuInfo& cpu_info() {
  static const CpuInfo info = detect();
  return info;
}

}  // namespace ft

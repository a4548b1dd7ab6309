// Macros shared by the vector layers. No std headers here or below: target units export no weak
// symbol.
#ifndef FT_VEC_COMMON_H_
#define FT_VEC_COMMON_H_

#include <stdint.h>
#include <string.h>

#define FT_INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define FT_UNROLL _Pragma("unroll")
#else
#define FT_UNROLL _Pragma("GCC unroll 16")
#endif

#endif  // FT_VEC_COMMON_H_

// The library's own scratch memory: grows to the largest call, is then kept. Used under the API
// lock.
#ifndef FT_WORKSPACE_H_
#define FT_WORKSPACE_H_

#include <cstdint>

namespace ft {

// `bytes` bytes, 64-byte aligned, contents undefined; null if there is no memory. Calls reuse the
// same memory.
void* workspace(int64_t bytes);
void release_workspace();

}  // namespace ft

#endif  // FT_WORKSPACE_H_

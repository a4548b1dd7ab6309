#include "workspace.h"

#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ft {
namespace {

void* memory = nullptr;
int64_t capacity = 0;

constexpr int64_t kPage = 4096, kHugePage = 2 << 20;

}  // namespace

void* workspace(int64_t bytes) {
  if (bytes <= capacity) return memory;
  std::free(memory);
  capacity = 0;
  const int64_t wanted = bytes + bytes / 4, page = wanted < 2 * kHugePage ? kPage : kHugePage;
  const int64_t rounded = (wanted + page - 1) / page * page;
  memory = std::aligned_alloc(static_cast<size_t>(page), static_cast<size_t>(rounded));
#if defined(__linux__)
  if (page == kHugePage && memory != nullptr)
    madvise(memory, static_cast<size_t>(rounded), MADV_HUGEPAGE);  // refused: small pages do
#endif
  if (memory != nullptr) capacity = rounded;
  return memory;
}

void release_workspace() {
  std::free(memory);
  memory = nullptr;
  capacity = 0;
}

}  // namespace ft

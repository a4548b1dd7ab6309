#include "workspace.h"

#include <cstdlib>

namespace ft {
namespace {

void* memory = nullptr;
int64_t capacity = 0;

}  // namespace

void* workspace(int64_t bytes) {
  if (bytes <= capacity) return memory;
  std::free(memory);
  capacity = 0;
  const int64_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
  memory = std::aligned_alloc(4096, static_cast<size_t>(rounded));
  if (memory != nullptr) capacity = rounded;
  return memory;
}

void release_workspace() {
  std::free(memory);
  memory = nullptr;
  capacity = 0;
}

}  // namespace ft

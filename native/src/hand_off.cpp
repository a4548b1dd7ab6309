#include "ft/hand_off.h"

#include <chrono>
#include <thread>

namespace {

constexpr int kSpins = 20000;
// Between two replies nothing comes for seconds; a step takes milliseconds.
constexpr auto kBusy = std::chrono::milliseconds(20);
constexpr auto kNap = std::chrono::microseconds(100);

uint32_t load(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

void store(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The next task's number, or 0 when the end was asked for.
uint32_t next_task(const ft_hand_off_args& args) {
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < kSpins; ++i) {
      const uint32_t number = load(args.ready);
      if (number != 0) return number;
      cpu_pause();
    }
    if (load(args.stop) != 0) return 0;
    if (std::chrono::steady_clock::now() - begun > kBusy) std::this_thread::sleep_for(kNap);
  }
}

void do_task(const ft_hand_off_item& item) {
  store(item.taken, item.number);
  const ft_status status = item.work(item.data);
  if (status != FT_OK && load(item.status) == 0) {
    store(item.status, static_cast<uint32_t>(status));
  }
  store(item.taken, 0);
}

}  // namespace

extern "C" ft_status ft_hand_off_serve(const ft_hand_off_args* args) {
  if (args == nullptr || args->size != sizeof(ft_hand_off_args)) return FT_ERR_SIZE;
  while (const uint32_t number = next_task(*args)) {
    if (number > args->count) return FT_ERR_INDEX;
    // taken first: a watchdog between the two lines would see no task at all.
    store(args->items[number - 1].taken, number);
    store(args->ready, 0);
    do_task(args->items[number - 1]);
    store(args->done, number);
  }
  return FT_OK;
}

extern "C" void ft_hand_off_call(void* item) {
  do_task(*static_cast<const ft_hand_off_item*>(item));
}

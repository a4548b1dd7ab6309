// The CPU's side of a step that runs on a GPU. The GPU's stream writes a task's number into `ready`
// and stands still until the same number is in `done`; a thread in ft_hand_off_serve does the task
// in between. Called by ftengine/gpu/hand_off.py.
//
//   GPU stream                      host thread
//   done = 0
//   ready = n       ------------->  sees n: ready = 0, taken = n
//                                   status = work(data) of items[n - 1]
//   waits: done==n  <-------------  taken = 0, done = n
//
// The words lie in pinned memory, each on a cache line of its own. The GPU writes done = 0 and
// ready = n in this order, after the copies that the task reads; the worker's done = n is a release.
#ifndef FT_HAND_OFF_H_
#define FT_HAND_OFF_H_

#include <stdint.h>

#include "ft/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a task calls: ft_expert_ffn with its arguments fits.
typedef ft_status (*ft_task)(const void* data);

//   0 work  8 data  16 number (from 1)  20 zero  24 status u32: the first that is not 0
//   32 taken u32: the number of the task under way, else 0
typedef struct {
  ft_task work;
  const void* data;
  uint32_t number;
  uint32_t zero;
  uint32_t* status;
  uint32_t* taken;
} ft_hand_off_item;
FT_STATIC_ASSERT(sizeof(ft_hand_off_item) == 40, "layout");

//   0 size  4 count  8 ready u32  16 done u32  24 stop u32  32 items[count]
typedef struct {
  uint32_t size;
  uint32_t count;
  uint32_t* ready;
  uint32_t* done;
  const uint32_t* stop;
  const ft_hand_off_item* items;
} ft_hand_off_args;
FT_STATIC_ASSERT(sizeof(ft_hand_off_args) == 40, "layout");

// Serves tasks until *stop is not 0. Returns FT_ERR_INDEX on a number without a task.
FT_API ft_status ft_hand_off_serve(const ft_hand_off_args* args);
// Does one task, where a driver calls it itself as a host function. item: ft_hand_off_item.
FT_API void ft_hand_off_call(void* item);

#ifdef __cplusplus
}
#endif
#endif  // FT_HAND_OFF_H_

// Time, for waits: to bound them and to make room while waiting.
#pragma once

#include <cstdint>

namespace jax_symm::ptx {

/// %globaltimer (PTX ISA 3.1): nanoseconds; advances in steps of up to a microsecond or so.
__device__ __forceinline__ uint64_t GlobalTimerNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

/// nanosleep.u32 (6.3, sm_70): suspends the thread for 0 to 2 * `ns`.
__device__ __forceinline__ void NanoSleep(uint32_t ns) {
  asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory");
}

}  // namespace jax_symm::ptx

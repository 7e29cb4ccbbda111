// Named barriers of a CTA: they order all memory accesses of the threads that meet.
#pragma once

#include <cstdint>

namespace jax_symm::ptx {

/// bar.sync (PTX ISA 1.0; with a thread count 2.0): converged warps only; `threads` is a multiple
/// of 32. Barrier 0 is __syncthreads().
__device__ __forceinline__ void BarrierSync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// bar.red.and.pred (2.0): the same, and every thread learns whether all said true.
__device__ __forceinline__ bool BarrierAnd(uint32_t id, uint32_t threads, bool value) {
  uint32_t all;
  asm volatile(
      "{\n\t.reg .pred in, out;\n\t"
      "setp.ne.u32 in, %3, 0;\n\t"
      "bar.red.and.pred out, %1, %2, in;\n\t"
      "selp.u32 %0, 1, 0, out;\n\t}"
      : "=r"(all)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(value))
      : "memory");
  return all != 0;
}

}  // namespace jax_symm::ptx

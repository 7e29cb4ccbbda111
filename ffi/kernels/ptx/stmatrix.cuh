// stmatrix (PTX ISA 7.8, sm_90): a warp stores 8x8 matrices of 16-bit elements to shared memory.
#pragma once

#include <cstdint>

#include "kernels/ptx/shared_address.cuh"

namespace jax_symm::ptx {

/// Four matrices: lane l gives the address of row l % 8 of matrix l / 8, 16-byte aligned. Generic
/// proxy; a barrier orders it before other threads' loads.
__device__ __forceinline__ void StoreMatrixX4(uint32_t shared_address, uint32_t m0, uint32_t m1,
                                              uint32_t m2, uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

}  // namespace jax_symm::ptx

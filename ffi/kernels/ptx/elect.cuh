// elect.sync (PTX ISA 8.0, sm_90): one lane of a warp.
#pragma once

#include <cstdint>

namespace jax_symm::ptx {

/// True in one lane of a fully active warp. Unlike a comparison of the lane number it tells ptxas
/// that a single thread goes on, which keeps descriptors in uniform registers.
__device__ __forceinline__ bool ElectOne() {
  uint32_t elected;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "elect.sync _|p, 0xffffffff;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(elected)
      :
      : "memory");
  return elected != 0;
}

}  // namespace jax_symm::ptx

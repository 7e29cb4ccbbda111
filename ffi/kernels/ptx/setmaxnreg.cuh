// setmaxnreg (PTX ISA 8.0, sm_90a and later): moves registers between the warpgroups of a CTA.
// Every warp of the warpgroup must run it, once, at the top of its role.
#pragma once

#include <cstdint>

namespace jax_symm::ptx {

/// setmaxnreg.dec: gives registers back; never blocks.
template <uint32_t kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// setmaxnreg.inc: blocks until other warpgroups have released enough.
template <uint32_t kRegisters>
__device__ __forceinline__ void AcquireRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace jax_symm::ptx

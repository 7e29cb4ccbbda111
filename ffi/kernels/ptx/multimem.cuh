// multimem (PTX ISA 8.1, sm_90; .acc::f32 8.2): one access that the switch carries out on every
// rank's copy. Only for multicast addresses, and only multimem may touch those.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/address.h"
#include "kernels/ptx/memory.cuh"

namespace jax_symm::ptx {

/// multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4 .bf16x2 or .f16x2: the sum over the ranks,
/// added in f32 and rounded once. Orders nothing; acquire the flags and fence.proxy.alias first.
/// No memory clobber, as with LoadVector.
template <typename Element>
__device__ Vector MultimemLoadReduce(MulticastAddress address);

template <>
__device__ __forceinline__ Vector MultimemLoadReduce<__nv_bfloat16>(MulticastAddress address) {
  Vector v;
  asm volatile(
      "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
      : "l"(address.value));
  return v;
}

template <>
__device__ __forceinline__ Vector MultimemLoadReduce<__half>(MulticastAddress address) {
  Vector v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(address.value));
  return v;
}

/// multimem.st.relaxed.sys.global.v4.f32: the same sixteen bytes, of any type, to every rank.
/// Orders nothing; before a release: a barrier of the storing threads, then fence.proxy.alias.
__device__ __forceinline__ void MultimemStore(MulticastAddress address, const Vector& v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address.value),
               "f"(__uint_as_float(v.words[0])), "f"(__uint_as_float(v.words[1])),
               "f"(__uint_as_float(v.words[2])), "f"(__uint_as_float(v.words[3]))
               : "memory");
}

}  // namespace jax_symm::ptx

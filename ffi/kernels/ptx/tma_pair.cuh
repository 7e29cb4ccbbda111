// TMA loads of a CTA pair: each CTA loads into its own shared memory, and the bytes of both
// complete on one barrier of the even CTA (PTX ISA 8.6, sm_100f).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/shared_address.cuh"

namespace jax_symm::ptx {

/// As TmaLoad2d, but `barrier` names the barrier at that offset in CTA 0 of the pair.
__device__ __forceinline__ void TmaLoadPair2d(void* destination, const CUtensorMap* map,
                                              uint64_t* barrier, int32_t inner, int32_t outer) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".cta_group::2 [%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(ClusterAddress(SharedAddress(barrier), 0)), "r"(inner), "r"(outer)
      : "memory");
}

}  // namespace jax_symm::ptx

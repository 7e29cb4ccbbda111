// The bulk copy engine (TMA): tensor tiles into shared memory, plain byte rows out of it.
// PTX ISA 8.0, sm_90. All of these are accesses of the async proxy.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/shared_address.cuh"

namespace jax_symm::ptx {

/// prefetch.tensormap: a hint; hides the first fetch of the descriptor.
__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// cp.async.bulk.tensor.2d, global to this CTA's shared memory; out-of-bounds elements read as
/// zero. Completes `box bytes` on `barrier`, whose acquire makes the data visible.
__device__ __forceinline__ void TmaLoad2d(void* destination, const CUtensorMap* map,
                                          uint64_t* barrier, int32_t inner, int32_t outer) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(inner), "r"(outer)
      : "memory");
}

/// The same box to the same offsets of every CTA in `cta_mask`; each CTA's barrier gets the bytes.
__device__ __forceinline__ void TmaLoadMulticast2d(void* destination, const CUtensorMap* map,
                                                   uint64_t* barrier, int32_t inner, int32_t outer,
                                                   uint16_t cta_mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(inner), "r"(outer), "h"(cta_mask)
      : "memory");
}

/// cp.async.bulk, shared to global: `bytes` contiguous bytes, both ends and the size 16-aligned.
/// The executing thread owns the bulk group.
__device__ __forceinline__ void BulkStore(void* destination, uint32_t source_shared_address,
                                          uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination),
               "r"(source_shared_address), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void BulkCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// All of this thread's bulk stores have read shared memory: it may be written again. Says nothing
/// about the destination.
__device__ __forceinline__ void BulkWaitSourceRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// All of this thread's bulk stores are complete and visible to it: the only wait that may come
/// before a flag.
__device__ __forceinline__ void BulkWaitComplete() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// fence.proxy.async.shared::cta: this thread's generic writes to shared memory before the async
/// proxy's reads that a barrier orders after it.
__device__ __forceinline__ void FenceProxyAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace jax_symm::ptx

// mbarrier: the shared-memory barriers that order TMA, wgmma and warps of one CTA or cluster.
// PTX ISA 7.0 (sm_80), expect_tx and the shared::cluster forms 8.0 (sm_90).
// Waits here are not bounded: they wait only for roles of the same CTA or cluster, and those leave
// a tile only when it is complete, also after a fault.
#pragma once

#include <cstdint>

#include "kernels/ptx/shared_address.cuh"

namespace jax_symm::ptx {

/// mbarrier.init: visible to the async proxy and to the cluster only after MbarrierInitFence.
__device__ __forceinline__ void MbarrierInit(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

/// fence.mbarrier_init (8.0): orders the inits above before a cluster barrier that follows.
__device__ __forceinline__ void MbarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// mbarrier.arrive: release, scope of the CTA.
__device__ __forceinline__ void MbarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}

/// mbarrier.arrive on the same barrier of another CTA of the cluster. The default release of CTA
/// scope: right for handing back a buffer whose reads have completed, not for publishing data.
__device__ __forceinline__ void MbarrierArriveCluster(uint64_t* barrier, uint32_t cta) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                   ClusterAddress(SharedAddress(barrier), cta))
               : "memory");
}

/// The same with release at cluster scope, for publishing data. Costs a full membar.
__device__ __forceinline__ void MbarrierReleaseCluster(uint64_t* barrier, uint32_t cta) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   ClusterAddress(SharedAddress(barrier), cta))
               : "memory");
}

/// mbarrier.arrive.expect_tx: one arrival, and `bytes` more that TMA must complete in this phase.
__device__ __forceinline__ void MbarrierArriveExpectTx(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}

/// mbarrier.try_wait.parity: acquire, CTA scope; true once the phase of this parity has completed.
__device__ __forceinline__ bool MbarrierTryWait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

/// The same with acquire at cluster scope, for data that another CTA's generic stores published.
__device__ __forceinline__ bool MbarrierTryWaitCluster(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void MbarrierWait(uint64_t* barrier, uint32_t parity) {
  while (!MbarrierTryWait(barrier, parity)) {
  }
}

__device__ __forceinline__ void MbarrierWaitCluster(uint64_t* barrier, uint32_t parity) {
  while (!MbarrierTryWaitCluster(barrier, parity)) {
  }
}

}  // namespace jax_symm::ptx

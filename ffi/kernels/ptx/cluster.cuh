// Thread block clusters (PTX ISA 7.8, sm_90): rank of the CTA and the cluster-wide barrier.
#pragma once

#include <cstdint>

namespace jax_symm::ptx {

__device__ __forceinline__ uint32_t ClusterCtaRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// barrier.cluster: every thread of every CTA; release on arrival, acquire on leaving.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace jax_symm::ptx

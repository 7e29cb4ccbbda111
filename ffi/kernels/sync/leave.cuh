// The end of a launch on one rank.
#pragma once

#include <cstdint>

#include "kernels/ptx/fence.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sync/signals.cuh"
#include "kernels/sync/warp.cuh"

namespace jax_symm {

/// One converged warp of every CTA, after a barrier of all its roles, on every path. The last CTA
/// tells the peers that this rank has read all it will read, and closes the epoch.
__device__ inline void LeaveLaunch(const KernelParams& params) {
  SignalPad* pad = PadOf(params, params.rank);
  const uint32_t lane = Lane();
  // Every trip to memory here is at the end of every call, so none waits for another in vain.
  const uint64_t epoch = ReadLaunchTag(params).epoch;
  uint32_t left = 0;
  // Acquire-release: every other CTA's reads, claims and report come before what follows.
  if (lane == 0) left = ptx::AtomicAddAcqRelGpu(&pad->left, 1);
  if (__shfl_sync(kFullWarp, left, 0) != gridDim.x - 1) return;
  __syncwarp();  // a shuffle orders no memory
  // This rank read partials by the multicast address; their next writers use unicast ones.
  if (params.multicast_workspace.value != 0) ptx::FenceProxyAlias();

  const uint64_t verdict = ptx::LoadRelaxedSys(&pad->fault);
  // Pairs with the acquire before the first store of each peer's next launch.
  for (uint32_t peer = lane; peer < params.ranks; peer += 32) {
    ptx::StoreReleaseSys(&PadOf(params, peer)->done[params.rank], epoch);
  }
  __syncwarp();
  if (lane != 0) return;
  if (verdict != 0) ptx::StoreReleaseSys(&params.fault_record->verdict, verdict);
  // Nobody but this rank's next launch reads these, and streams order that.
  ptx::StoreRelaxedGpu(&pad->tile_claims, 0);
  ptx::StoreRelaxedGpu(&pad->comm_claims, 0);
  ptx::StoreRelaxedGpu(&pad->left, 0);
  ptx::StoreRelaxedSys(&pad->epoch, epoch);
}

}  // namespace jax_symm

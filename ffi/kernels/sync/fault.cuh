// How a launch gives up: one verdict for all ranks, settled at rank 0, then stored everywhere.
#pragma once

#include <cstdint>

#include "kernels/ptx/memory.cuh"
#include "kernels/sync/signals.cuh"

namespace jax_symm {

/// Sticky: once true of a workspace, no launch on it computes anything again.
__device__ __forceinline__ bool LaunchHasFailed(const KernelParams& params) {
  return ptx::LoadRelaxedSys(&PadOf(params, params.rank)->fault) != 0;
}

/// A rank that has not even begun this launch is the cause; the one waited for may itself be
/// waiting for it. Reads peers' memory: only for launches that have failed.
__device__ inline uint32_t FindCulprit(const KernelParams& params, const LaunchTag& tag,
                                       uint32_t awaited_peer) {
  uint32_t culprit = awaited_peer;
  uint64_t least = tag.epoch;
  for (uint32_t rank = 0; rank < params.ranks; ++rank) {
    const uint64_t begun = FlagEpoch(ptx::LoadRelaxedSys(&PadOf(params, rank)->current));
    if (begun < least) {
      least = begun;
      culprit = rank;
    }
  }
  return culprit;
}

/// One thread. Several may report at once, here and elsewhere: the first to reach rank 0's word
/// wins, and all others spread the winner's verdict.
__device__ inline void ReportFault(const KernelParams& params, const LaunchTag& tag, FaultKind kind,
                                   uint32_t blamed, const Observation& observation) {
  const uint64_t mine = PackVerdict({kind, params.rank, blamed, tag.epoch});
  const uint64_t first = ptx::CompareAndSwapRelaxedSys(&PadOf(params, 0)->fault, 0, mine);
  const uint64_t verdict = first == 0 ? mine : first;
  if (ptx::ExchangeRelaxedGpu(&PadOf(params, params.rank)->observed, 1) == 0) {
    params.fault_record->observation = observation;
  }
  for (uint32_t rank = 0; rank < params.ranks; ++rank) {
    ptx::StoreRelaxedSys(&PadOf(params, rank)->fault, verdict);
  }
}

}  // namespace jax_symm

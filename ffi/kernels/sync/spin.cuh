// The only place where a kernel waits for another rank. Every wait is bounded, notices a fault of
// any rank, and notices the death of a peer's process.
#pragma once

#include <cstdint>

#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/time.cuh"
#include "kernels/sync/fault.cuh"
#include "kernels/sync/signals.cuh"
#include "kernels/sync/warp.cuh"

namespace jax_symm {

inline constexpr uint32_t kPollPauseNs = 64;
/// Of the fault word and the clock.
inline constexpr uint32_t kPollsPerFaultCheck = 8;
/// Of host memory. By time and not by polls: reads over PCIe from every SM hold up the whole GPU
/// (two H200s: a launch took up to 30 times as long with one read in 64 polls).
inline constexpr uint64_t kAbortCheckNs = 10'000'000;

/// What a warp waits for: one word of each rank that it asks for.
struct Wait {
  Awaited awaited;
  uint32_t tile;
  uint64_t wanted;
};

namespace spin_internal {

/// Done words count launches; flags have to be the one of this very call.
__device__ __forceinline__ bool Arrived(const Wait& wait, uint64_t seen) {
  return wait.awaited == Awaited::kPreviousLaunch ? seen >= wait.wanted : seen == wait.wanted;
}

__device__ __forceinline__ FaultKind Trouble(const KernelParams& params, const Wait& wait,
                                             uint64_t seen, bool past_deadline) {
  if (wait.awaited != Awaited::kPreviousLaunch && FlagEpoch(seen) >= FlagEpoch(wait.wanted)) {
    return FaultKind::kOtherCall;
  }
  return past_deadline ? FaultKind::kTimeout : FaultKind::kNone;
}

/// What a lane that still waits has noticed; `blamed` is by whose fault.
__device__ inline FaultKind LookForTrouble(const KernelParams& params, const Wait& wait,
                                           uint64_t seen, uint64_t deadline, uint64_t* abort_check,
                                           uint32_t* blamed) {
  const uint64_t now = ptx::GlobalTimerNs();
  if (now >= *abort_check) {
    *abort_check = now + kAbortCheckNs;
    const uint32_t lost = ptx::LoadRelaxedSys(params.abort_word);
    if (lost != 0) {
      *blamed = lost - 1;
      return FaultKind::kPeerLost;
    }
  }
  return Trouble(params, wait, seen, now >= deadline);
}

/// Polls until the word of every lane that has one has arrived. The polls are relaxed: an acquire
/// empties the L1 cache each time, and that slows down whatever else the SM does.
__device__ inline bool SpinWarp(const KernelParams& params, const LaunchTag& tag, const Wait& wait,
                                uint32_t peer, const uint64_t* word) {
  const uint64_t start = ptx::GlobalTimerNs();
  const uint64_t deadline = start + params.timeout_ns;
  uint64_t abort_check = start + kAbortCheckNs;
  for (uint32_t poll = 1;; ++poll) {
    const uint64_t seen = word != nullptr ? ptx::LoadRelaxedSys(word) : wait.wanted;
    const bool arrived = Arrived(wait, seen);
    const bool all_arrived = __all_sync(kFullWarp, arrived);
    if (all_arrived || poll % kPollsPerFaultCheck == 0) {
      if (__any_sync(kFullWarp, LaunchHasFailed(params))) return false;
    }
    if (all_arrived) {
      // Arrived words do not change within a launch, so this reads what the release stored.
      if (word != nullptr) ptx::LoadAcquireSys(word);
      return true;
    }
    if (poll % kPollsPerFaultCheck == 0) {
      uint32_t blamed = peer;
      FaultKind trouble = FaultKind::kNone;
      if (!arrived) trouble = LookForTrouble(params, wait, seen, deadline, &abort_check, &blamed);
      const uint32_t troubled = __ballot_sync(kFullWarp, trouble != FaultKind::kNone);
      if (troubled != 0) {
        if (Lane() == LowestLane(troubled)) {
          if (trouble == FaultKind::kTimeout) blamed = FindCulprit(params, tag, peer);
          ReportFault(params, tag, trouble, blamed,
                      {wait.awaited, peer, wait.tile, seen, wait.wanted});
        }
        return false;
      }
    }
    ptx::NanoSleep(kPollPauseNs);
  }
}

}  // namespace spin_internal

/// A converged warp. `word_of(rank)` is the word to wait for, or null where there is none. True
/// once all have arrived, and then what the peers did before is visible to this warp; false, in
/// all lanes, if the launch has failed. Each lane polls one rank's word, so that looking at all of
/// them costs one trip to memory.
template <typename WordOf>
__device__ bool WaitForRanks(const KernelParams& params, const LaunchTag& tag, const Wait& wait,
                             WordOf word_of) {
  for (uint32_t first = 0; first < params.ranks; first += 32) {
    const uint32_t peer = first + Lane();
    const uint64_t* word = peer < params.ranks ? word_of(peer) : nullptr;
    if (!spin_internal::SpinWarp(params, tag, wait, peer, word)) return false;
  }
  __syncwarp();  // a vote orders no memory; this hands every lane what each has acquired
  return true;
}

}  // namespace jax_symm

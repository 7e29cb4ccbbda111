// Where the words are by which ranks meet, and the tag that this launch's words carry.
#pragma once

#include <cstdint>

#include "kernels/layout/kernel_params.h"
#include "kernels/ptx/memory.cuh"

namespace jax_symm {

__device__ __forceinline__ SignalPad* PadOf(const KernelParams& params, uint32_t rank) {
  return reinterpret_cast<SignalPad*>(params.workspace[rank].value);
}

/// The word at `rank` that says: `source`'s share of `tile` is written.
__device__ __forceinline__ uint64_t* TileFlag(const KernelParams& params, uint32_t rank,
                                              uint32_t tile, uint32_t source) {
  return reinterpret_cast<uint64_t*>(params.workspace[rank].value + params.flags_offset) +
         FlagIndex(tile, params.ranks, source);
}

/// The word at `rank` that says: `owner`'s rows of `slice` are final.
__device__ __forceinline__ uint64_t* ResultFlag(const KernelParams& params, uint32_t rank,
                                                uint32_t slice, uint32_t owner) {
  return reinterpret_cast<uint64_t*>(params.workspace[rank].value + params.result_flags_offset) +
         FlagIndex(slice, params.ranks, owner);
}

struct LaunchTag {
  uint64_t epoch;
  uint64_t flag;
};

/// Any thread may ask until its CTA leaves: the last CTA to leave stores the epoch.
__device__ __forceinline__ LaunchTag ReadLaunchTag(const KernelParams& params) {
  const uint64_t epoch = ptx::LoadRelaxedGpu(&PadOf(params, params.rank)->epoch) + 1;
  return {epoch, MakeFlag(epoch, params.call)};
}

}  // namespace jax_symm

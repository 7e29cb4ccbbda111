// Hands out the tiles of the product, in the common order, to whichever CTA is free.
#pragma once

#include <cstdint>

#include "kernels/ptx/memory.cuh"
#include "kernels/schedule/tile_order.h"
#include "kernels/sync/fault.cuh"

namespace jax_symm {

template <typename Tile>
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const KernelParams& params) : params_(params), order_(params) {}

  /// One thread; of a cluster, one thread for all its CTAs. The next position of the order, or
  /// kNoMoreTiles, also once a fault is known: what has been claimed is still to be finished.
  __device__ uint32_t Claim() const { return FinishClaim(BeginClaim()); }

  /// The same in two steps: nothing waits for memory before the second.
  struct PendingClaim {
    uint64_t fault;
    uint32_t position;
  };
  __device__ PendingClaim BeginClaim() const {
    SignalPad* pad = PadOf(params_, params_.rank);
    return {ptx::LoadRelaxedSys(&pad->fault), ptx::AtomicAddRelaxedGpu(&pad->tile_claims, 1)};
  }
  __device__ uint32_t FinishClaim(const PendingClaim& claim) const {
    return claim.fault == 0 && claim.position < order_.Count() ? claim.position : kNoMoreTiles;
  }

  /// The tile of CTA `cta` of the cluster. A pair's second tile may lie wholly below the last row.
  __device__ TileId Decode(uint32_t position, uint32_t cta) const {
    return order_.Decode(position, cta);
  }

 private:
  const KernelParams& params_;
  TileOrder<Tile> order_;
};

}  // namespace jax_symm

// Hands claimed tiles to every role of a CTA, or of all CTAs of a cluster. One lane of the leader
// CTA claims; the others only read.
#pragma once

#include <cstdint>

#include "kernels/mainloop/pipeline_state.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/schedule/tile_order.h"

namespace jax_symm {

template <typename Tile>
class TileQueueWriter {
 public:
  using Storage = typename Tile::SharedStorage;

  /// One lane of the leader CTA. Stores are weak; the release on `queue_full` publishes them.
  __device__ __forceinline__ void Push(Storage& shared, uint32_t tile) {
    ptx::MbarrierWait(&shared.queue_empty[state_.slot], state_.parity ^ 1);
    if constexpr (Tile::kCluster == 1) {
      shared.queue_tile[state_.slot] = tile;
      ptx::MbarrierArrive(&shared.queue_full[state_.slot]);
    } else {
#pragma unroll
      for (uint32_t cta = 0; cta < Tile::kCluster; ++cta) {
        ptx::StoreSharedCluster(&shared.queue_tile[state_.slot], cta, tile);
        ptx::MbarrierReleaseCluster(&shared.queue_full[state_.slot], cta);
      }
    }
    state_.Advance();
  }

 private:
  PipelineState<Tile::kQueueSlots> state_;
};

template <typename Tile>
class TileQueueReader {
 public:
  using Storage = typename Tile::SharedStorage;

  /// A converged warp. False when the list is exhausted.
  __device__ __forceinline__ bool Pop(Storage& shared, uint32_t* tile) {
    *tile = Read(shared);
    __syncwarp();
    if ((threadIdx.x & 31) == 0) HandBack(shared);
    state_.Advance();
    return *tile != kNoMoreTiles;
  }

  /// The same for a role of a single thread.
  __device__ __forceinline__ bool PopAlone(Storage& shared, uint32_t* tile) {
    *tile = Read(shared);
    HandBack(shared);
    state_.Advance();
    return *tile != kNoMoreTiles;
  }

 private:
  __device__ __forceinline__ uint32_t Read(Storage& shared) {
    if constexpr (Tile::kCluster == 1) {
      ptx::MbarrierWait(&shared.queue_full[state_.slot], state_.parity);
    } else {
      ptx::MbarrierWaitCluster(&shared.queue_full[state_.slot], state_.parity);
    }
    return shared.queue_tile[state_.slot];
  }

  __device__ __forceinline__ void HandBack(Storage& shared) {
    if constexpr (Tile::kCluster == 1) {
      ptx::MbarrierArrive(&shared.queue_empty[state_.slot]);
    } else {
      ptx::MbarrierArriveCluster(&shared.queue_empty[state_.slot], 0);
    }
  }

  PipelineState<Tile::kQueueSlots> state_;
};

}  // namespace jax_symm

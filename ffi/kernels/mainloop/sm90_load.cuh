// The TMA warp: fills the ring with tiles of x and w.
#pragma once

#include <cstdint>

#include "kernels/mainloop/pipeline_state.cuh"
#include "kernels/mainloop/sm90_tile.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace jax_symm {

/// One k step of w. Each CTA of a cluster loads its share and multicasts it to all.
template <typename Tile>
__device__ __forceinline__ void LoadWeights(typename Tile::SharedStorage& shared,
                                            const CUtensorMap* map, uint32_t stage,
                                            uint32_t cta_rank, int n0, int k0) {
#pragma unroll
  for (int i = 0; i < Tile::kBoxesPerCta; ++i) {
    const int box = static_cast<int>(cta_rank) * Tile::kBoxesPerCta + i;
    const int n = n0 + box * Tile::kBoxN;
    void* destination = shared.b[stage] + box * Tile::kBoxBytes;
    const int inner = Tile::kWeights == WeightLayout::kNK ? k0 : n;
    const int outer = Tile::kWeights == WeightLayout::kNK ? n : k0;
    if constexpr (Tile::kCluster == 1) {
      ptx::TmaLoad2d(destination, map, &shared.stage_full[stage], inner, outer);
    } else {
      constexpr uint16_t kEveryCta = (1u << Tile::kCluster) - 1;
      ptx::TmaLoadMulticast2d(destination, map, &shared.stage_full[stage], inner, outer, kEveryCta);
    }
  }
}

template <typename Tile>
class Sm90Loader {
 public:
  /// One lane. Loads all k steps of the tile at (m0, n0); out-of-bounds elements become zeros.
  __device__ __forceinline__ void LoadTile(typename Tile::SharedStorage& shared,
                                           const CUtensorMap* x_map, const CUtensorMap* w_map,
                                           uint32_t cta_rank, int m0, int n0, int k_steps) {
    for (int step = 0; step < k_steps; ++step) {
      const uint32_t stage = state_.slot;
      // Multicast fills the peer's stage as well, so both CTAs' readers release it here.
      ptx::MbarrierWait(&shared.stage_empty[stage], state_.parity ^ 1);
      ptx::MbarrierArriveExpectTx(&shared.stage_full[stage], Tile::kStageBytes);
      const int k0 = step * Tile::kTileK;
      ptx::TmaLoad2d(shared.a[stage], x_map, &shared.stage_full[stage], k0, m0);
      LoadWeights<Tile>(shared, w_map, stage, cta_rank, n0, k0);
      state_.Advance();
    }
  }

 private:
  PipelineState<Tile::kStages> state_;
};

}  // namespace jax_symm

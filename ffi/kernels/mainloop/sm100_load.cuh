// The TMA thread of SM100: fills the ring with tiles of x and w.
#pragma once

#include <cstdint>

#include "kernels/mainloop/pipeline_state.cuh"
#include "kernels/mainloop/sm100_tile.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/tma_pair.cuh"

namespace jax_symm {

template <typename Tile>
class Sm100Loader {
 public:
  using Storage = typename Tile::SharedStorage;

  /// One thread. Loads all k steps of the tile at (m0, n0): this CTA's rows of x and its share of
  /// the columns of w. Elements outside the tensors become zeros.
  __device__ __forceinline__ void LoadTile(Storage& shared, const CUtensorMap* x_map,
                                           const CUtensorMap* w_map, uint32_t cta_rank, int m0,
                                           int n0, int k_steps) {
    const int own_n0 = n0 + static_cast<int>(cta_rank) * (Tile::kTileN / Tile::kCluster);
    for (int step = 0; step < k_steps; ++step) {
      const uint32_t stage = state_.slot;
      ptx::MbarrierWait(&shared.stage_empty[stage], state_.parity ^ 1);
      // CTA 0's barrier counts the bytes of both. Those of the other CTA may complete first: one
      // commit freed the stage in both, so they belong to this phase.
      if (cta_rank == 0) {
        ptx::MbarrierArriveExpectTx(&shared.stage_full[stage], Tile::kCluster * Tile::kStageBytes);
      }
      const int k0 = step * Tile::kTileK;
      Load(shared.a[stage], x_map, &shared.stage_full[stage], k0, m0);
      LoadWeights(shared, w_map, own_n0, k0);
      state_.Advance();
    }
  }

  /// Waits until the MMA has read every stage. It signals both CTAs, so neither may exit before.
  __device__ __forceinline__ void Drain(Storage& shared) {
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::MbarrierWait(&shared.stage_empty[state_.slot], state_.parity ^ 1);
      state_.Advance();
    }
  }

 private:
  __device__ __forceinline__ void LoadWeights(Storage& shared, const CUtensorMap* map, int n0,
                                              int k0) {
#pragma unroll
    for (int box = 0; box < Tile::kBoxesPerCta; ++box) {
      const int n = n0 + box * Tile::kBoxN;
      const int inner = Tile::kWeights == WeightLayout::kNK ? k0 : n;
      const int outer = Tile::kWeights == WeightLayout::kNK ? n : k0;
      Load(shared.b[state_.slot] + box * Tile::kBoxBytes, map, &shared.stage_full[state_.slot],
           inner, outer);
    }
  }

  __device__ __forceinline__ static void Load(void* destination, const CUtensorMap* map,
                                              uint64_t* barrier, int inner, int outer) {
    if constexpr (Tile::kCluster == 1) {
      ptx::TmaLoad2d(destination, map, barrier, inner, outer);
    } else {
      ptx::TmaLoadPair2d(destination, map, barrier, inner, outer);
    }
  }

  PipelineState<Tile::kStages> state_;
};

}  // namespace jax_symm

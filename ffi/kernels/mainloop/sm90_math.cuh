// A math warpgroup: 64 rows of the CTA tile, accumulated in registers by wgmma.
#pragma once

#include <cstdint>

#include "kernels/mainloop/pipeline_state.cuh"
#include "kernels/mainloop/sm90_tile.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace jax_symm {

template <typename Tile>
class Sm90Math {
 public:
  static constexpr int kAccumulators = Tile::kWarpgroupN / 2;

  __device__ __forceinline__ Sm90Math(typename Tile::SharedStorage& shared, uint32_t warpgroup)
      : shared_(shared) {
    constexpr bool kRowsSplit = Tile::kWarpgroupsAlongN == 1;
    const uint32_t a_rows = kRowsSplit ? warpgroup * Tile::kWarpgroupM : 0;
    const uint32_t b_rows = kRowsSplit ? 0 : warpgroup * Tile::kWarpgroupN;
    // 64 rows of 128 bytes in either layout: K-major rows of n, or one 64-column block of MN-major.
    a_base_ = ptx::WgmmaDescriptor(ptx::SharedAddress(shared.a[0]) + a_rows * 128, 16, 1024);
    b_base_ = ptx::WgmmaDescriptor(ptx::SharedAddress(shared.b[0]) + b_rows * 128,
                                   kTransposeB ? kBlockBytes : 16, 1024);
  }

  /// All k steps of one tile. On return the sums are in `d` and every stage has been released.
  /// `meanwhile` is called once, while the last products are under way.
  template <typename Meanwhile>
  __device__ __forceinline__ void Accumulate(float (&d)[kAccumulators], int k_steps,
                                             Meanwhile meanwhile) {
    uint32_t previous = 0;
    for (int step = 0; step < k_steps; ++step) {
      const uint32_t stage = state_.slot;
      ptx::MbarrierWait(&shared_.stage_full[stage], state_.parity);
      ptx::WgmmaPin(d);
      ptx::WgmmaFence();
      IssueStage(d, stage, step);
      ptx::WgmmaCommit();
      ptx::WgmmaPin(d);
      ptx::WgmmaWait<1>();
      if (step > 0) Release(previous);
      previous = stage;
      state_.Advance();
    }
    meanwhile();
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(d);
    Release(previous);
  }

 private:
  static constexpr bool kTransposeB = Tile::kWeights == WeightLayout::kKN;
  static constexpr uint32_t kBlockBytes = 64 * Tile::kTileK * 2;
  static constexpr uint32_t kStepK = 16;
  static constexpr uint32_t kStepBytesA = kStepK * 2;
  static constexpr uint32_t kStepBytesB = kTransposeB ? kStepK * 128 : kStepK * 2;

  __device__ __forceinline__ void IssueStage(float (&d)[kAccumulators], uint32_t stage, int step) {
    using Instruction = ptx::Wgmma<typename Tile::Element, Tile::kWarpgroupN, kTransposeB>;
    const uint64_t a = a_base_ + stage * (Tile::kABytes >> 4);
    const uint64_t b = b_base_ + stage * (Tile::kBBytes >> 4);
#pragma unroll
    for (uint32_t i = 0; i < Tile::kTileK / kStepK; ++i) {
      const uint32_t accumulate = i > 0 || step > 0;
      Instruction::Issue(d, a + i * (kStepBytesA >> 4), b + i * (kStepBytesB >> 4), accumulate);
    }
  }

  /// One arrival per warp at every CTA whose loads fill this stage: wait_group covers the warp.
  __device__ __forceinline__ void Release(uint32_t stage) {
    const uint32_t lane = threadIdx.x & 31;
    if (lane < Tile::kCluster) {
      if constexpr (Tile::kCluster == 1) {
        ptx::MbarrierArrive(&shared_.stage_empty[stage]);
      } else {
        ptx::MbarrierArriveCluster(&shared_.stage_empty[stage], lane);
      }
    }
  }

  typename Tile::SharedStorage& shared_;
  uint64_t a_base_;
  uint64_t b_base_;
  PipelineState<Tile::kStages> state_;
};

}  // namespace jax_symm

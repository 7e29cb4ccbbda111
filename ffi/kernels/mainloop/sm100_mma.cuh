// The MMA thread of SM100: stages of operands in, accumulators in tensor memory out.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/layout/umma_descriptor.h"
#include "kernels/mainloop/pipeline_state.cuh"
#include "kernels/mainloop/sm100_tile.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tcgen05.cuh"

namespace jax_symm {

/// One thread of CTA 0; in a cluster of two it drives the tensor cores of both CTAs.
template <typename Tile>
class Sm100Mma {
 public:
  using Storage = typename Tile::SharedStorage;

  __device__ __forceinline__ void MultiplyTile(Storage& shared, int k_steps) {
    const uint32_t buffer = accumulator_.slot;
    ptx::MbarrierWait(&shared.accumulator_empty[buffer], accumulator_.parity ^ 1);
    ptx::TcgenFenceAfterSync();
    const uint32_t d = shared.tensor_base + buffer * Tile::kTileN;
    for (int step = 0; step < k_steps; ++step) {
      ptx::MbarrierWait(&shared.stage_full[stage_.slot], stage_.parity);
      ptx::TcgenFenceAfterSync();
      MultiplyStage(shared, d, step != 0);
      ptx::TcgenCommit<Tile::kCluster>(&shared.stage_empty[stage_.slot]);
      stage_.Advance();
    }
    ptx::TcgenCommit<Tile::kCluster>(&shared.accumulator_full[buffer]);
    accumulator_.Advance();
  }

 private:
  static constexpr UmmaFormat kFormat =
      std::is_same_v<typename Tile::Element, __nv_bfloat16> ? UmmaFormat::kBf16 : UmmaFormat::kF16;
  static constexpr uint64_t kADescriptor = UmmaSharedDescriptor(UmmaMajor::kK, 0);
  static constexpr uint64_t kBDescriptor =
      UmmaSharedDescriptor(Tile::kWeightMajor, Tile::kBoxBytes);
  static constexpr uint32_t kInstruction =
      UmmaInstruction(kFormat, Tile::kWeightMajor, Tile::kTileM* Tile::kCluster, Tile::kTileN);

  __device__ __forceinline__ void MultiplyStage(Storage& shared, uint32_t d, bool accumulate) {
    const uint64_t a = UmmaAt(kADescriptor, ptx::SharedAddress(shared.a[stage_.slot]));
    const uint64_t b = UmmaAt(kBDescriptor, ptx::SharedAddress(shared.b[stage_.slot]));
#pragma unroll
    for (int i = 0; i < Tile::kTileK / kUmmaK; ++i) {
      ptx::TcgenMmaF16<Tile::kCluster>(d, a + i * UmmaKStep(UmmaMajor::kK),
                                       b + i * UmmaKStep(Tile::kWeightMajor), kInstruction,
                                       accumulate || i != 0);
    }
  }

  PipelineState<Tile::kStages> stage_;
  PipelineState<Tile::kAccumulators> accumulator_;
};

}  // namespace jax_symm

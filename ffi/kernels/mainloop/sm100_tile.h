// Shape of the SM100 mainloop: CTA tile, pipeline depth and the map of shared and tensor memory.
#pragma once

#include <cstdint>

#include "kernels/layout/umma_descriptor.h"
#include "kernels/layout/weight_layout.h"

namespace jax_symm {

/// One CTA computes kTileM x kTileN. In a cluster of two, both run one 256-row instruction: each
/// CTA holds its own 128 rows of x and half of the columns of w, and gets its own 128 x kTileN
/// result. kStagingBytes is what the epilogue needs of shared memory.
template <typename Element_, WeightLayout kWeights_, int kTileN_, int kCluster_, int kStagingBytes_>
struct Sm100Tile {
  using Element = Element_;
  static constexpr WeightLayout kWeights = kWeights_;
  static constexpr int kTileM = 128;
  static constexpr int kTileN = kTileN_;
  static constexpr int kTileK = 64;           // 128 bytes, one swizzle span
  static constexpr int kCluster = kCluster_;  // is also tcgen05's cta_group

  static constexpr int kABytes = kTileM * kTileK * 2;
  static constexpr int kBBytes = kTileN / kCluster * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;

  // One box of w is what one TMA instruction loads.
  static constexpr int kBoxN = kWeights == WeightLayout::kNK ? kTileN / kCluster : 64;
  static constexpr int kBoxesPerCta = kTileN / kCluster / kBoxN;
  static constexpr int kBoxBytes = kBoxN * kTileK * 2;

  // One CTA takes all of an SM. The ring gets what the staging and the barriers leave.
  static constexpr int kThreads = 320;
  static constexpr int kCommThreads = 128;
  static constexpr int kSharedBytes = 227 * 1024;
  static constexpr int kStagingBytes = kStagingBytes_;
  static constexpr int kControlBytes = 1024;
  static constexpr int kStages = (kSharedBytes - kControlBytes - kStagingBytes) / kStageBytes;

  static constexpr int kTensorColumns = 512;  // all of the SM's tensor memory
  static constexpr int kAccumulators = kTensorColumns / kTileN;

  static constexpr int kEpilogueWarps = 4;
  static constexpr int kQueueSlots = 4;
  // Per CTA: the epilogue, MMA and TMA warps.
  static constexpr int kQueueReaderWarps = kEpilogueWarps + 2;

  struct alignas(1024) SharedStorage {
    uint8_t a[kStages][kABytes];
    uint8_t b[kStages][kBBytes];
    alignas(128) uint8_t staging[kStagingBytes > 0 ? kStagingBytes : 1];
    uint64_t stage_full[kStages];               // TMA of both CTAs -> MMA of CTA 0
    uint64_t stage_empty[kStages];              // back, to both
    uint64_t accumulator_full[kAccumulators];   // MMA -> epilogue of both CTAs
    uint64_t accumulator_empty[kAccumulators];  // back, to CTA 0
    uint64_t queue_full[kQueueSlots];
    uint64_t queue_empty[kQueueSlots];
    uint32_t queue_tile[kQueueSlots];
    uint32_t tensor_base;
  };
  static constexpr UmmaMajor kWeightMajor =
      kWeights == WeightLayout::kNK ? UmmaMajor::kK : UmmaMajor::kMn;
  static_assert((kCluster == 1 && kTileN == 128) ||
                (kCluster == 2 && (kTileN == 128 || kTileN == 256)));
  static_assert(kABytes % 1024 == 0 && kBBytes % 1024 == 0, "swizzled tiles start at 1024 bytes");
};

}  // namespace jax_symm

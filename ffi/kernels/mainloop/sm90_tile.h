// Shape of the SM90 mainloop: CTA tile, pipeline depth and the map of its shared memory.
#pragma once

#include <cstdint>

#include "kernels/layout/weight_layout.h"

namespace jax_symm {

/// Two math warpgroups share a tile_m x tile_n tile. Each owns 64 rows of it; with tile_m == 64
/// they split the columns instead.
template <typename Element_, WeightLayout kWeights_, int kTileM_, int kTileN_, int kStages_,
          int kCluster_>
struct Sm90Tile {
  using Element = Element_;
  static constexpr WeightLayout kWeights = kWeights_;
  static constexpr int kTileM = kTileM_;
  static constexpr int kTileN = kTileN_;
  static constexpr int kTileK = 64;  // 128 bytes, one swizzle span
  static constexpr int kStages = kStages_;
  static constexpr int kCluster = kCluster_;  // CTAs along m that share the tile of w

  static constexpr int kMathWarpgroups = 2;
  static constexpr int kCommThreads = 64;  // two warps beside the load warp and the store warp
  static constexpr int kThreads = 128 + 128 * kMathWarpgroups;
  static constexpr int kWarpgroupM = 64;
  static constexpr int kWarpgroupsAlongN = kMathWarpgroups * kWarpgroupM / kTileM;
  static constexpr int kWarpgroupN = kTileN / kWarpgroupsAlongN;

  static constexpr int kABytes = kTileM * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;

  // One box of w is what one CTA of the cluster loads in one go.
  static constexpr int kBoxN = kWeights == WeightLayout::kNK ? kTileN / kCluster : 64;
  static constexpr int kBoxesPerCta = kTileN / kCluster / kBoxN;
  static constexpr int kBoxBytes = kBoxN * kTileK * 2;

  // The epilogue passes through shared memory: every math warp lays out its 16 rows, in pieces, as
  // rows 16 bytes longer than their data, so that eight rows of a stmatrix hit distinct banks.
  static constexpr int kMathWarps = 4 * kMathWarpgroups;
  static constexpr int kWarpM = 16;
  static constexpr int kStagingColumns = kWarpgroupN < 128 ? kWarpgroupN : 128;
  static constexpr int kStagingPitchBytes = kStagingColumns * 2 + 16;
  static constexpr int kStagingBytes = kWarpM * kStagingPitchBytes;  // of one warp

  static constexpr int kQueueSlots = 2;
  // The publishing warp, the math warps, and the load warp of every CTA but the claiming leader.
  static constexpr int kQueueReaders = kCluster * (1 + kMathWarps) + kCluster - 1;
  // Math warps can have stored the tiles in the queue and one more before the publishing warp
  // looks.
  static constexpr int kStoredSlots = kQueueSlots + 1;

  struct alignas(1024) SharedStorage {
    uint8_t a[kStages][kABytes];
    uint8_t b[kStages][kBBytes];
    alignas(128) uint8_t staging[kMathWarps][kStagingBytes];
    uint64_t stage_full[kStages];
    uint64_t stage_empty[kStages];
    uint64_t tile_stored[kStoredSlots];
    uint64_t verdict_known;
    uint64_t queue_full[kQueueSlots];
    uint64_t queue_empty[kQueueSlots];
    uint32_t queue_tile[kQueueSlots];
    uint32_t may_store;
    alignas(16) uint8_t comm_mailbox[64];
  };
  static constexpr int kSharedBytes = static_cast<int>(sizeof(SharedStorage));

  static_assert(kTileM == 64 || kTileM == 128);
  static_assert(kTileN == 64 || kTileN == 128 || kTileN == 256);
  static_assert(kCluster == 1 || kCluster == 2);
  static_assert(kABytes % 1024 == 0 && kBBytes % 1024 == 0, "swizzled tiles start at 1024 bytes");
  static_assert(kSharedBytes <= 227 * 1024, "does not fit one SM");
};

}  // namespace jax_symm

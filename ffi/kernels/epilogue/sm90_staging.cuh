// From the accumulators of a math warp to rows in shared memory, and from there to global memory in
// 16-byte stores, whole rows at a time. A warp has staging of its own and waits for no other.
#pragma once

#include <cstdint>

#include "kernels/epilogue/pack_pair.cuh"
#include "kernels/mainloop/sm90_tile.h"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/stmatrix.cuh"
#include "kernels/sync/warp.cuh"

namespace jax_symm {

/// Where the 16 rows of a math warp go.
struct WarpRows {
  uint64_t address;  // of row `lane % 16`, at the warp's first column; 0 drops the row
  int32_t columns;   // that exist, from the warp's first one on; may be more than it has
};

/// Rounds kStagingColumns columns of the warp's sums and lays them out as rows.
template <typename Tile>
__device__ __forceinline__ void StagePiece(uint32_t staging, const float* sums) {
  using E = typename Tile::Element;
  const uint32_t lane = Lane();
  const uint32_t address = staging + (lane & 15) * Tile::kStagingPitchBytes + (lane >> 4) * 16;
#pragma unroll
  for (int column = 0; column < Tile::kStagingColumns; column += 16) {
    const float* v = sums + column / 2;
    ptx::StoreMatrixX4(address + column * 2, PackPair<E>(v[0], v[1]), PackPair<E>(v[2], v[3]),
                       PackPair<E>(v[4], v[5]), PackPair<E>(v[6], v[7]));
  }
}

/// Stores a staged piece that begins at the warp's column `first_column`.
template <typename Tile>
__device__ __forceinline__ void StorePiece(uint32_t staging, const WarpRows& rows,
                                           int first_column) {
  constexpr int kLanesPerRow = Tile::kStagingColumns * 2 / 16;
  constexpr int kRowsPerPass = 32 / kLanesPerRow;
  constexpr int kPasses = Tile::kWarpM / kRowsPerPass;
  const int row0 = static_cast<int>(Lane()) / kLanesPerRow;
  const int column = static_cast<int>(Lane()) % kLanesPerRow * 8;
  const uint32_t source = staging + row0 * Tile::kStagingPitchBytes + column * 2;
  const bool in_columns = first_column + column < rows.columns;
  uint4 values[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    values[i] = ptx::LoadShared16(source + i * kRowsPerPass * Tile::kStagingPitchBytes);
  }
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const uint64_t address = __shfl_sync(kFullWarp, rows.address, row0 + i * kRowsPerPass);
    if (address != 0 && in_columns) {
      ptx::StoreGlobal16(address + (first_column + column) * 2, values[i]);
    }
  }
}

/// A converged math warp: rounds its sums, 16 x kWarpgroupN in wgmma's layout, and stores them.
template <typename Tile>
__device__ __forceinline__ void StoreAccumulators(typename Tile::SharedStorage& shared,
                                                  uint32_t math_warp, const WarpRows& rows,
                                                  const float (&sums)[Tile::kWarpgroupN / 2]) {
  const uint32_t staging = ptx::SharedAddress(shared.staging[math_warp]);
#pragma unroll
  for (int first = 0; first < Tile::kWarpgroupN; first += Tile::kStagingColumns) {
    __syncwarp();  // all lanes have read the piece before
    StagePiece<Tile>(staging, sums + first / 2);
    __syncwarp();
    StorePiece<Tile>(staging, rows, first);
  }
}

}  // namespace jax_symm

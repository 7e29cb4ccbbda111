// From accumulators to rows in shared memory (math warpgroups), and from there to global memory in
// 16-byte stores, whole rows at a time (store warp). One buffer serves both warpgroups in turn:
// while one is stored, the other still multiplies.
#pragma once

#include <cstdint>

#include "kernels/epilogue/pack_pair.cuh"
#include "kernels/mainloop/sm90_tile.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/stmatrix.cuh"

namespace jax_symm {

/// A piece in flight: 64 rows x kStagingColumns of one warpgroup's share of a tile. Pieces are
/// numbered in the order in which the store warp drains them, and take the buffers in turn.
template <typename Tile>
struct StagingPiece {
  uint32_t index;

  __device__ __forceinline__ uint32_t Buffer() const { return index % Tile::kStagingBuffers; }
  __device__ __forceinline__ uint32_t Parity() const { return index / Tile::kStagingBuffers & 1; }
  __device__ __forceinline__ uint32_t Warpgroup() const {
    return index / Tile::kStagingPieces % Tile::kMathWarpgroups;
  }
  /// The next user of the buffer.
  __device__ __forceinline__ StagingPiece Next() const { return {index + Tile::kStagingBuffers}; }
};

/// Waits until the piece before has left the buffer. A drained buffer is handed to the warpgroup
/// whose turn it is, by a barrier of its own: on a common one a warpgroup could miss a phase, and a
/// parity does not tell that.
template <typename Tile>
__device__ __forceinline__ void WaitForBuffer(typename Tile::SharedStorage& shared,
                                              StagingPiece<Tile> piece, uint32_t tile_of_cta) {
  static_assert(Tile::kStagingPieces <= Tile::kStagingBuffers, "one use of a buffer per tile");
  constexpr uint32_t kPiecesPerTile = Tile::kMathWarpgroups * Tile::kStagingPieces;
  // The first pieces of all find their buffers free, so their warpgroups get one hand-over less.
  const uint32_t free_at_first = piece.index % kPiecesPerTile < Tile::kStagingBuffers;
  if (tile_of_cta < free_at_first) return;
  ptx::MbarrierWait(&shared.staging_empty[piece.Warpgroup()][piece.Buffer()],
                    (tile_of_cta - free_at_first) & 1);
}

/// A whole math warpgroup: rounds 64 x kWarpgroupN sums and lays them out as rows.
template <typename Tile>
__device__ __forceinline__ void StageAccumulators(typename Tile::SharedStorage& shared,
                                                  uint32_t tile_of_cta, uint32_t warpgroup,
                                                  const float (&d)[Tile::kWarpgroupN / 2]) {
  using E = typename Tile::Element;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t row = threadIdx.x / 32 % 4 * 16 + (lane & 15);
  const uint32_t offset = row * Tile::kStagingPitchBytes + (lane >> 4) * 16;
  StagingPiece<Tile> piece{(tile_of_cta * Tile::kMathWarpgroups + warpgroup) *
                           Tile::kStagingPieces};
#pragma unroll
  for (int first = 0; first < Tile::kWarpgroupN; first += Tile::kStagingColumns, ++piece.index) {
    const uint32_t buffer = piece.Buffer();
    const uint32_t address = ptx::SharedAddress(shared.staging[buffer]) + offset;
    WaitForBuffer<Tile>(shared, piece, tile_of_cta);
#pragma unroll
    for (int column = 0; column < Tile::kStagingColumns; column += 16) {
      const float* v = d + (first + column) / 2;
      ptx::StoreMatrixX4(address + column * 2, PackPair<E>(v[0], v[1]), PackPair<E>(v[2], v[3]),
                         PackPair<E>(v[4], v[5]), PackPair<E>(v[6], v[7]));
    }
    ptx::MbarrierArrive(&shared.staging_full[buffer]);
  }
}

/// Where the 64 rows of a warpgroup's share go: each lane of the store warp holds two of them.
struct StagedRows {
  static constexpr int kHalves = 2;
  uint64_t address[kHalves];  // of row lane + 32 * half, at the share's first column; 0 drops it
};

/// The store warp, for one piece: 16 bytes a lane, whole rows at a time. `first_column` is the
/// piece's place in the share; the share has `columns` columns. On return the buffer is free.
template <typename Tile>
__device__ __forceinline__ void StorePiece(typename Tile::SharedStorage& shared,
                                           StagingPiece<Tile> piece, const StagedRows& rows,
                                           int first_column, int columns) {
  constexpr int kLanesPerRow = Tile::kStagingColumns * 2 / 16;
  constexpr int kRowsPerPass = 32 / kLanesPerRow;
  constexpr int kUnroll = 8;
  const uint32_t buffer = piece.Buffer();
  const int lane = threadIdx.x & 31;
  const int column = lane % kLanesPerRow * 8;
  const uint32_t source = ptx::SharedAddress(shared.staging[buffer]) + column * 2 +
                          lane / kLanesPerRow * Tile::kStagingPitchBytes;
  const bool in_columns = first_column + column < columns;
  const uint64_t offset = (first_column + column) * 2;
  ptx::MbarrierWait(&shared.staging_full[buffer], piece.Parity());
#pragma unroll
  for (int half = 0; half < StagedRows::kHalves; ++half) {
#pragma unroll 1
    for (int row0 = 0; row0 < 32; row0 += kRowsPerPass * kUnroll) {
      uint4 values[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        values[i] = ptx::LoadShared16(source + (half * 32 + row0 + i * kRowsPerPass) *
                                                   Tile::kStagingPitchBytes);
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int row = row0 + i * kRowsPerPass + lane / kLanesPerRow;
        const uint64_t address = __shfl_sync(0xFFFFFFFFu, rows.address[half], row);
        if (address != 0 && in_columns) ptx::StoreGlobal16(address + offset, values[i]);
      }
    }
  }
  __syncwarp();
  if (lane == 0) ptx::MbarrierArrive(&shared.staging_empty[piece.Next().Warpgroup()][buffer]);
}

}  // namespace jax_symm

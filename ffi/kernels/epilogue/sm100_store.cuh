// Rows of an SM100 tile from registers to where the sink wants them.
#pragma once

#include <cstdint>

#include "kernels/comm/tile_sink.cuh"
#include "kernels/epilogue/sm100_accumulator.cuh"
#include "kernels/epilogue/sm100_staging.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/store_wide.cuh"

namespace jax_symm {

/// Stores the first `columns` of 16 values (a multiple of 8; more than 16 or none are fine).
template <typename Element>
__device__ __forceinline__ void StoreColumns(Element* destination, const uint32_t* words,
                                             int columns, bool wide) {
  if (wide && columns >= 16) {
    ptx::StoreWideNoAllocate(destination, words);
    return;
  }
  if (columns >= 8) ptx::StoreVector(destination, {words[0], words[1], words[2], words[3]});
  if (columns >= 16) ptx::StoreVector(destination + 8, {words[4], words[5], words[6], words[7]});
}

/// What of a tile one epilogue warp stores.
struct TileShare {
  uint32_t row;     // the warp's first row, of the product
  uint32_t column;  // the tile's first column
  int columns;      // that exist
  bool may_store;
};

/// To this rank's own memory: each lane stores its row, 32 bytes at a time.
template <typename Tile, Reducer kReducer>
__device__ __forceinline__ void StoreByLane(typename Tile::SharedStorage& shared,
                                            Sm100AccumulatorReader<Tile>& accumulators,
                                            const TileSink<Tile, kReducer>& sink,
                                            const TileShare& share) {
  const uint32_t row = share.row + threadIdx.x % 32;
  const bool stores = share.may_store && sink.HasRow(row);
  auto* destination = stores ? sink.RowPointer(row, share.column) : nullptr;
  const bool wide = sink.RowsAlignTo32();
  for (int column = 0; column < share.columns; column += kChunkColumns) {
    uint32_t words[kChunkWords];
    accumulators.Load(shared, column, words);
    if (column + kChunkColumns >= share.columns) accumulators.Release(shared);
    if (!stores) continue;
#pragma unroll
    for (int i = 0; i < kChunkColumns; i += 16) {
      StoreColumns(destination + column + i, words + i / 2, share.columns - column - i, wide);
    }
  }
}

/// To the owners of the rows: four lanes store 128 contiguous bytes of a row, which is what a
/// link carries efficiently.
template <typename Tile, Reducer kReducer>
__device__ __forceinline__ void StoreThroughStaging(typename Tile::SharedStorage& shared,
                                                    Sm100AccumulatorReader<Tile>& accumulators,
                                                    const TileSink<Tile, kReducer>& sink,
                                                    const TileShare& share) {
  uint8_t* staging = shared.staging + threadIdx.x / 32 * kWarpStagingBytes;
  const int lane_column = threadIdx.x % kLanesPerRow * 16;
  typename Tile::Element* destinations[kRowsPerLane];
#pragma unroll
  for (int i = 0; i < kRowsPerLane; ++i) {
    const uint32_t row = share.row + StagedRow(i);
    const bool stores = share.may_store && sink.HasRow(row);
    destinations[i] = stores ? sink.RowPointer(row, share.column + lane_column) : nullptr;
  }
  const bool wide = sink.RowsAlignTo32();
  for (int column = 0; column < share.columns; column += kChunkColumns) {
    uint32_t words[kChunkWords];
    accumulators.Load(shared, column, words);
    if (column + kChunkColumns >= share.columns) accumulators.Release(shared);
    StageRow(staging, words);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRowsPerLane; ++i) {
      uint32_t part[8];
      ReadStaged(staging, i, part);
      if (destinations[i] == nullptr) continue;
      StoreColumns(destinations[i] + column, part, share.columns - column - lane_column, wide);
    }
    __syncwarp();
  }
}

}  // namespace jax_symm

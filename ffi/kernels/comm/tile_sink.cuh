// The contract between a mainloop's epilogue and everything else. The epilogue asks where each row
// of its tile goes, stores it there, and publishes the tile. It knows nothing of peers.
//
// In the order of a launch, for each warp that stores:
//   const bool may_store = sink.BeforeFirstStore();
//   for each claimed tile:
//     for each row with sink.HasRow(row):
//       if (may_store) store min(kTileN, n - column) elements, rounded to Element, at
//                      sink.RowPointer(row, column)
//     complete bulk stores (cp.async.bulk.wait_group 0, not .read)
//     barrier of all storing threads; if every warp may store, one warp calls sink.Publish(tile)
//
// A warp that may not store still empties its pipeline: the launch has failed, and the claims end
// at the next tile. Rows have gaps after n in slots and partials, but not in the output, where a
// single rank stores. 32-byte stores are legal if sink.RowsAlignTo32().
#pragma once

#include <cstdint>

#include "kernels/layout/placement.h"
#include "kernels/schedule/tile_order.h"
#include "kernels/sync/spin.cuh"
#include "kernels/sync/warp.cuh"

namespace jax_symm {

template <typename Tile, Reducer kReducer>
class TileSink {
 public:
  __device__ explicit TileSink(const KernelParams& params) : params_(params), order_(params) {}

  /// A converged warp, once a launch: waits until every peer has read what the previous launch
  /// left in the memory that this one overwrites. False if the launch has failed.
  __device__ bool BeforeFirstStore() const {
    if (StoresStraightToOutput(params_)) return !__any_sync(kFullWarp, LaunchHasFailed(params_));
    const LaunchTag tag = ReadLaunchTag(params_);
    const uint64_t* done = PadOf(params_, params_.rank)->done;
    return WaitForRanks(params_, tag, {Awaited::kPreviousLaunch, 0, tag.epoch - 1},
                        [&](uint32_t rank) { return &done[rank]; });
  }

  __device__ __forceinline__ bool HasRow(uint32_t row) const {
    return row < params_.rows.TotalRows();
  }

  __device__ __forceinline__ bool RowsAlignTo32() const {
    return (StoresStraightToOutput(params_) ? params_.output_pitch : params_.data_pitch) % 16 == 0;
  }

  /// Any thread. Rows and columns are those of the product.
  __device__ __forceinline__ typename Tile::Element* RowPointer(uint32_t row,
                                                                uint32_t column) const {
    using Element = typename Tile::Element;
    if (StoresStraightToOutput(params_)) {
      return static_cast<Element*>(OutputAddress(params_, row, column));
    }
    return reinterpret_cast<Element*>(PartialAddress<kReducer>(params_, params_.rank, row, column));
  }

  /// A converged warp, after a barrier of the threads whose stores have completed. Tells every
  /// rank that owns rows of the tile; pairs with the acquire in CommLoop.
  __device__ void Publish(TileId tile) const {
    if (StoresStraightToOutput(params_)) return;
    const LaunchTag tag = ReadLaunchTag(params_);
    const uint32_t total = params_.rows.TotalRows();
    const uint32_t begin = min(tile.m * Tile::kTileM, total);
    const RowRange rows = {begin, min(begin + Tile::kTileM, total)};
    for (uint32_t rank = Lane(); rank < params_.ranks; rank += 32) {
      if (params_.rows.OwnsAny(rank, rows)) {
        ptx::StoreReleaseSys(TileFlag(params_, rank, order_.FlagTile(tile), params_.rank),
                             tag.flag);
      }
    }
    __syncwarp();
  }

 private:
  const KernelParams& params_;
  TileOrder<Tile> order_;
};

}  // namespace jax_symm

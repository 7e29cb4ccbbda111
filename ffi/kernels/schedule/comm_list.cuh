// The communication work of one rank: slices of tiles, in the common tile order, claimed strictly
// one after the other. A slice is at most kSliceRows rows of one tile.
//
// Reduce-scatter: the slices that hold rows of this rank. All-reduce: all; of each, this rank
// first reduces its own rows and then copies the others'. A reduction waits for producers only,
// and producers wait for nobody's communication; a copy waits for reductions of the same place in
// the list. So one resident CTA per rank is enough to get to the end.
#pragma once

#include <cstdint>

#include "kernels/schedule/tile_order.h"
#include "kernels/sync/warp.cuh"

namespace jax_symm {

struct CommItem {
  RowRange rows;  // of the product; begin == end: the list is exhausted
  uint32_t first_column;
  uint32_t tile;   // index of the tile's flags
  uint32_t slice;  // index of the slice's result flags
};

/// A cursor into the list. All members are for one converged warp.
template <typename Tile, Collective kCollective>
class CommList {
 public:
  __device__ explicit CommList(const KernelParams& params)
      : params_(params), order_(params), slices_(CountSlices(0)) {}

  /// The item with number `ordinal`, which only grows from call to call.
  __device__ CommItem Find(uint32_t ordinal) {
    while (ordinal - first_ >= slices_ * order_.NTiles()) {
      first_ += slices_ * order_.NTiles();
      if (++band_ == order_.Bands()) return {};
      slices_ = CountSlices(band_);
    }
    const uint32_t n = (ordinal - first_) / slices_;
    return ItemOf(NthSlice(band_, (ordinal - first_) % slices_), n);
  }

 private:
  static constexpr uint32_t kSlicesPerTile = Tile::kTileM / kSliceRows;
  static constexpr uint32_t kSlicesPerGroup = kSlicesPerTile * Tile::kCluster;
  static_assert(Tile::kTileM % kSliceRows == 0);

  __device__ uint32_t BandSlices(uint32_t band) const {
    return order_.BandGroups(band) * kSlicesPerGroup;
  }

  /// The number, counted along m, of a band's `index`-th slice in the order of visits.
  __device__ uint32_t SliceAt(uint32_t band, uint32_t index) const {
    return order_.BandGroup(band, index / kSlicesPerGroup) * kSlicesPerGroup +
           index % kSlicesPerGroup;
  }

  __device__ RowRange RowsOf(uint32_t slice) const {
    const uint32_t total = params_.rows.TotalRows();
    const uint32_t begin = min(slice * kSliceRows, total);
    return {begin, min(begin + kSliceRows, total)};
  }

  /// Which of 32 slices of a band hold work, as a bit mask.
  __device__ uint32_t WorkMask(uint32_t band, uint32_t first) const {
    const uint32_t index = first + Lane();
    bool has_work = false;
    if (index < BandSlices(band)) {
      const RowRange rows = RowsOf(SliceAt(band, index));
      has_work = kCollective == Collective::kAllReduce ? rows.begin < rows.end
                                                       : params_.rows.OwnsAny(params_.rank, rows);
    }
    return __ballot_sync(kFullWarp, has_work);
  }

  __device__ uint32_t CountSlices(uint32_t band) const {
    uint32_t count = 0;
    for (uint32_t first = 0; first < BandSlices(band); first += 32) {
      count += __popc(WorkMask(band, first));
    }
    return count;
  }

  /// The nth slice of a band that holds work.
  __device__ uint32_t NthSlice(uint32_t band, uint32_t nth) const {
    for (uint32_t first = 0;; first += 32) {
      const uint32_t mask = WorkMask(band, first);
      const uint32_t count = __popc(mask);
      if (nth < count) {
        const uint32_t before = __popc(mask & ((1u << Lane()) - 1));
        const bool chosen = (mask >> Lane() & 1) && before == nth;
        return SliceAt(band, first + LowestLane(__ballot_sync(kFullWarp, chosen)));
      }
      nth -= count;
    }
  }

  __device__ CommItem ItemOf(uint32_t slice, uint32_t n) const {
    const uint32_t tile = order_.FlagTile({slice / kSlicesPerTile, n});
    return {RowsOf(slice), n * Tile::kTileN, tile, tile * kSlicesPerTile + slice % kSlicesPerTile};
  }

  const KernelParams& params_;
  TileOrder<Tile> order_;
  uint32_t band_ = 0;
  uint32_t first_ = 0;  // number of the band's first item
  uint32_t slices_;     // of the band that hold work, for each n
};

}  // namespace jax_symm

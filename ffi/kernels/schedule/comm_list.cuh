// The communication work of one rank: slices of tiles, in the common tile order, claimed strictly
// one after the other. A slice is at most kSliceRows rows of one tile.
//
// Reduce-scatter: the slices that hold rows of this rank. All-reduce: step s of the list is to
// reduce this rank's rows of slice s, then to copy the others' rows of slice s - lag. The lag gives
// the owner of a slice the time to reduce it while everybody else does something useful; without
// it all ranks would wait for one owner at a time.
//
// A reduction waits for producers only, and producers wait for nobody's communication; a copy waits
// for reductions of an earlier step. So one resident CTA per rank is enough to get to the end.
#pragma once

#include <cstdint>

#include "kernels/schedule/tile_order.h"
#include "kernels/sync/warp.cuh"

namespace jax_symm {

/// No work if it has no rows.
struct CommItem {
  RowRange rows;  // of the product
  uint32_t first_column;
  uint32_t tile;   // index of the tile's flags
  uint32_t slice;  // index of the slice's result flags
};

struct CommStep {
  CommItem reduce;
  CommItem copy;
  bool exists;  // false: the list is exhausted
};

/// A cursor into the list. All members are for one converged warp.
template <typename Tile, Collective kCollective>
class CommList {
 public:
  __device__ explicit CommList(const KernelParams& params)
      : params_(params), order_(params), slices_(CountSlices(0)) {}

  /// The step with number `ordinal`, which only grows from call to call.
  __device__ CommStep Find(uint32_t ordinal) {
    if constexpr (kCollective == Collective::kReduceScatter) {
      return FindOwn(ordinal);
    } else {
      const uint32_t slices = order_.Count() * kSlicesPerGroup;
      // The grid is the same on all ranks, so the lag is too.
      const uint32_t lag = kStepsOfLagPerCta * gridDim.x;
      CommStep step = {{}, {}, ordinal < slices + lag};
      if (ordinal < slices) step.reduce = SliceOf(ordinal);
      if (ordinal >= lag && step.exists) step.copy = SliceOf(ordinal - lag);
      return step;
    }
  }

 private:
  static constexpr uint32_t kSlicesPerTile = Tile::kTileM / kSliceRows;
  static constexpr uint32_t kSlicesPerGroup = kSlicesPerTile * Tile::kCluster;
  static constexpr uint32_t kStepsOfLagPerCta = 3;
  static_assert(Tile::kTileM % kSliceRows == 0);

  /// Slice number `position` of the product in the order of visits.
  __device__ CommItem SliceOf(uint32_t position) const {
    const uint32_t band_slices =
        BandSlices(0) * order_.NTiles();  // only the last band may be short
    const uint32_t band = position / band_slices;
    const uint32_t in_band = position - band * band_slices;
    const uint32_t slices = BandSlices(band);
    return ItemOf(SliceAt(band, in_band % slices), in_band / slices);
  }

  __device__ CommStep FindOwn(uint32_t ordinal) {
    while (ordinal - first_ >= slices_ * order_.NTiles()) {
      first_ += slices_ * order_.NTiles();
      if (++band_ == order_.Bands()) return {};
      slices_ = CountSlices(band_);
    }
    const uint32_t n = (ordinal - first_) / slices_;
    return {ItemOf(NthSlice(band_, (ordinal - first_) % slices_), n), {}, true};
  }

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

  /// Which of 32 slices of a band hold rows of this rank, as a bit mask.
  __device__ uint32_t OwnMask(uint32_t band, uint32_t first) const {
    const uint32_t index = first + Lane();
    const bool own = index < BandSlices(band) &&
                     params_.rows.OwnsAny(params_.rank, RowsOf(SliceAt(band, index)));
    return __ballot_sync(kFullWarp, own);
  }

  __device__ uint32_t CountSlices(uint32_t band) const {
    if constexpr (kCollective == Collective::kAllReduce) return 0;
    uint32_t count = 0;
    for (uint32_t first = 0; first < BandSlices(band); first += 32) {
      count += __popc(OwnMask(band, first));
    }
    return count;
  }

  /// The nth slice of a band that holds rows of this rank.
  __device__ uint32_t NthSlice(uint32_t band, uint32_t nth) const {
    for (uint32_t first = 0;; first += 32) {
      const uint32_t mask = OwnMask(band, first);
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
  uint32_t band_ = 0;   // reduce-scatter only, as the two below
  uint32_t first_ = 0;  // number of the band's first item
  uint32_t slices_;     // of the band that hold work, for each n
};

}  // namespace jax_symm

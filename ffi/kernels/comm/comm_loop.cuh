// The communication warpgroup: takes slices from the list, adds up the ranks' contributions to
// this rank's rows, writes the output and, for an all-reduce, exchanges the results.
#pragma once

#include <cstdint>

#include "kernels/comm/reducers.cuh"
#include "kernels/comm/vector_math.cuh"
#include "kernels/layout/placement.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/schedule/comm_list.cuh"
#include "kernels/sync/fault.cuh"
#include "kernels/sync/spin.cuh"

namespace jax_symm {

inline constexpr uint32_t kCommThreads = 128;

/// In shared memory of the CTA: what the first warp tells the others.
struct CommMailbox {
  CommItem item;
};

/// All of kCommThreads call Run() once; `thread` counts them from 0 and begins at a warp; the
/// barrier is theirs alone. Returns when every output row that this CTA claimed is written: with
/// the sum, with zeros where it is padding, or with NaN if the launch has failed.
template <typename Tile, typename ReducerPolicy, Collective kCollective, uint32_t kBarrier>
class CommLoop {
 public:
  using Element = typename Tile::Element;

  __device__ CommLoop(const KernelParams& params, CommMailbox& mailbox, uint32_t thread)
      : params_(params), mailbox_(mailbox), thread_(thread), tag_(ReadLaunchTag(params)) {}

  __device__ void Run() {
    Begin();
    if (kCollective == Collective::kReduceScatter) ZeroPadding();
    if (StoresStraightToOutput(params_)) {
      if (ptx::BarrierAnd(kBarrier, kCommThreads, LaunchHasFailed(params_))) PoisonAll();
      return;
    }
    CommList<Tile, kCollective> list(params_);
    for (CommItem item = Next(list); item.rows.begin < item.rows.end; item = Next(list)) {
      if (params_.rows.OwnsAny(params_.rank, item.rows)) ReduceOwnRows(item);
      if (kCollective == Collective::kAllReduce && !params_.rows.OwnsAll(params_.rank, item.rows)) {
        CopyOtherRows(item);
      }
    }
  }

 private:
  static constexpr Reducer kReducer = ReducerPolicy::kReducer;
  static constexpr uint32_t kVectorsPerRow = Tile::kTileN / kVectorElements;
  static constexpr uint32_t kStep = kCommThreads * kPlacesInFlight;

  __device__ bool FirstWarp() const { return thread_ < 32; }

  /// Says which launch this is, for whoever looks for a rank that is missing, and checks that the
  /// mesh of the caller and the workspace agree on who this rank is.
  __device__ void Begin() {
    if (thread_ == 0) {
      ptx::StoreRelaxedSys(&PadOf(params_, params_.rank)->current, tag_.flag);
      const uint64_t index = static_cast<uint64_t>(*params_.axis_index);
      if (index != params_.rank) {
        ReportFault(params_, tag_, FaultKind::kWrongRank, params_.rank,
                    {Awaited::kNothing, params_.rank, 0, index, params_.rank});
      }
    }
    ptx::BarrierSync(kBarrier, kCommThreads);
  }

  /// The next item for all threads. Every use of an item ends in a barrier or begins with one, so
  /// the mailbox has been read when the first warp comes back here.
  __device__ CommItem Next(CommList<Tile, kCollective>& list) {
    if (FirstWarp()) {
      uint32_t ordinal = 0;
      if (thread_ == 0) {
        ordinal = ptx::AtomicAddRelaxedGpu(&PadOf(params_, params_.rank)->comm_claims, 1);
      }
      const CommItem item = list.Find(__shfl_sync(kFullWarp, ordinal, 0));
      if (thread_ == 0) mailbox_.item = item;
    }
    ptx::BarrierSync(kBarrier, kCommThreads);
    return mailbox_.item;
  }

  __device__ void ReduceOwnRows(const CommItem& item) {
    bool ready = true;
    if (FirstWarp()) {
      ready = WaitForRanks(
          params_, tag_, {Awaited::kPartial, item.tile, tag_.flag},
          [&](uint32_t source) { return TileFlag(params_, params_.rank, item.tile, source); });
      ReducerPolicy::BeforeReads();
    }
    if (!ptx::BarrierAnd(kBarrier, kCommThreads, ready)) {
      Poison(item, /*own_rows=*/true);
      return;
    }
    Reduce(item);
    if (kCollective == Collective::kAllReduce) PublishResult(item);
  }

  __device__ void Reduce(const CommItem& item) {
    for (uint32_t index = thread_; index < kSliceRows * kVectorsPerRow; index += kStep) {
      Place places[kPlacesInFlight];
      Sums sums = {};
#pragma unroll
      for (int p = 0; p < kPlacesInFlight; ++p) {
        places[p] = PlaceOf(item, index + p * kCommThreads, /*own_rows=*/true);
      }
      ReducerPolicy::template Sum<Element>(params_, places, sums);
#pragma unroll
      for (int p = 0; p < kPlacesInFlight; ++p) {
        if (!places[p].live) continue;
        StoreOutput(places[p], sums[p]);
        if (kCollective == Collective::kAllReduce) StoreResult(places[p], sums[p]);
      }
    }
  }

  /// After the stores of all threads: tells every other rank that has to copy these rows.
  __device__ void PublishResult(const CommItem& item) {
    ptx::BarrierSync(kBarrier, kCommThreads);
    if (!FirstWarp()) return;
    ReducerPolicy::AfterBroadcast();
    for (uint32_t rank = thread_; rank < params_.ranks; rank += 32) {
      if (rank == params_.rank) continue;
      ptx::StoreReleaseSys(ResultFlag(params_, rank, item.slice, params_.rank), tag_.flag);
    }
    __syncwarp();
  }

  __device__ void CopyOtherRows(const CommItem& item) {
    bool ready = true;
    if (FirstWarp()) {
      ready = WaitForRanks(params_, tag_, {Awaited::kResult, item.tile, tag_.flag},
                           [&](uint32_t owner) -> const uint64_t* {
                             if (owner == params_.rank || !params_.rows.OwnsAny(owner, item.rows))
                               return nullptr;
                             return ResultFlag(params_, params_.rank, item.slice, owner);
                           });
    }
    if (!ptx::BarrierAnd(kBarrier, kCommThreads, ready)) {
      Poison(item, /*own_rows=*/false);
      return;
    }
    const uint64_t workspace = params_.workspace[params_.rank].value;
    for (uint32_t index = thread_; index < kSliceRows * kVectorsPerRow; index += kCommThreads) {
      const Place place = PlaceOf(item, index, /*own_rows=*/false);
      if (!place.live) continue;
      const auto* from = reinterpret_cast<const uint8_t*>(
          workspace + ResultOffset(params_, place.row, place.column));
      auto* to = static_cast<uint8_t*>(OutputAddress(params_, place.row, place.column));
      ptx::StoreVector(to, ptx::LoadVector(from));
      if (params_.output_type == OutputType::kFloat32) {
        ptx::StoreVector(to + 16, ptx::LoadVector(from + 16));
      }
    }
  }

  /// The `index`-th vector of a slice; live if it is of this rank's rows, or of the others'.
  __device__ Place PlaceOf(const CommItem& item, uint32_t index, bool own_rows) const {
    Place place;
    place.row = item.rows.begin + index / kVectorsPerRow;
    place.column = item.first_column + index % kVectorsPerRow * kVectorElements;
    place.live = place.row < item.rows.end && place.column < params_.n &&
                 (params_.rows.Owner(place.row) == params_.rank) == own_rows;
    return place;
  }

  __device__ void StoreOutput(const Place& place, const float (&sums)[kVectorElements]) const {
    const uint32_t row =
        kCollective == Collective::kAllReduce ? place.row : params_.rows.ShardRow(place.row);
    StoreOutputRow(row, place.column, sums);
  }

  __device__ void StoreOutputRow(uint32_t row, uint32_t column,
                                 const float (&sums)[kVectorElements]) const {
    auto* to = static_cast<uint8_t*>(OutputAddress(params_, row, column));
    StoreAs<Element>(params_.output_type, sums,
                     [&](int half, const ptx::Vector& v) { ptx::StoreVector(to + 16 * half, v); });
  }

  __device__ void StoreResult(const Place& place, const float (&sums)[kVectorElements]) const {
    const uint64_t offset = ResultOffset(params_, place.row, place.column);
    StoreAs<Element>(params_.output_type, sums, [&](int half, const ptx::Vector& v) {
      ReducerPolicy::Broadcast(params_, offset + 16 * half, v);
    });
  }

  /// Fills what a failed launch leaves unwritten, so that nobody takes old memory for a sum.
  __device__ void Poison(const CommItem& item, bool own_rows) const {
    for (uint32_t index = thread_; index < kSliceRows * kVectorsPerRow; index += kCommThreads) {
      const Place place = PlaceOf(item, index, own_rows);
      if (place.live) StoreOutput(place, NotANumber().values);
    }
  }

  __device__ void PoisonAll() const {
    FillRows(params_.rows.TotalRows(), NotANumber().values, [](uint32_t row) { return row; });
  }

  /// Rows of the shard that are beyond the last row of the product.
  __device__ void ZeroPadding() const {
    const float zeros[kVectorElements] = {};
    const uint32_t shard = params_.rows.shard_rows;
    const uint32_t owned = params_.rows.OwnedPerBatch(params_.rank);
    const uint32_t padding = shard - owned;
    FillRows(params_.rows.batch * padding, zeros,
             [&](uint32_t index) { return index / padding * shard + owned + index % padding; });
  }

  /// Fills output rows row_of(0 .. count - 1), shared out over the CTAs.
  template <typename RowOf>
  __device__ void FillRows(uint32_t count, const float (&values)[kVectorElements],
                           RowOf row_of) const {
    const uint32_t vectors = params_.n / kVectorElements;
    const uint64_t all = uint64_t{count} * vectors;
    const uint64_t step = uint64_t{gridDim.x} * kCommThreads;
    for (uint64_t index = blockIdx.x * kCommThreads + thread_; index < all; index += step) {
      StoreOutputRow(row_of(static_cast<uint32_t>(index / vectors)),
                     static_cast<uint32_t>(index % vectors) * kVectorElements, values);
    }
  }

  struct NotANumber {
    float values[kVectorElements];
    __device__ NotANumber() {
      for (float& value : values) value = __int_as_float(0x7fffffff);
    }
  };

  const KernelParams& params_;
  CommMailbox& mailbox_;
  uint32_t thread_;
  LaunchTag tag_;
};

}  // namespace jax_symm

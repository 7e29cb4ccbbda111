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

/// In shared memory of the CTA: what the first warp tells the others.
struct CommMailbox {
  CommStep step;
};

/// All of Tile::kCommThreads call Run() once; `thread` counts them from 0 and begins at a warp; the
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
    uint32_t claim = Claim();
    while (Next(list, &claim)) {
      const CommStep& step = mailbox_.step;  // stays until all threads ask for the next
      if (params_.rows.OwnsAny(params_.rank, step.reduce.rows)) ReduceOwnRows(step.reduce);
      if (kCollective == Collective::kReduceScatter) continue;
      const bool has_rows = step.copy.rows.begin < step.copy.rows.end;
      if (has_rows && !params_.rows.OwnsAll(params_.rank, step.copy.rows)) {
        CopyOtherRows(step.copy);
      }
    }
  }

 private:
  static constexpr Reducer kReducer = ReducerPolicy::kReducer;
  static constexpr uint32_t kCommThreads = Tile::kCommThreads;
  static constexpr uint32_t kVectorsPerRow = Tile::kTileN / kVectorElements;
  static constexpr uint32_t kRowsPerPass = kCommThreads / kVectorsPerRow;
  static constexpr uint32_t kCopiesInFlight = 6;
  static_assert(kCommThreads % kVectorsPerRow == 0, "threads cover whole rows");

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

  /// One claim of the list, in every lane of the first warp.
  __device__ uint32_t Claim() const {
    uint32_t ordinal = 0;
    if (thread_ == 0) {
      ordinal = ptx::AtomicAddRelaxedGpu(&PadOf(params_, params_.rank)->comm_claims, 1);
    }
    return ordinal;
  }

  /// Puts the step that was claimed into the mailbox; false if there is none. The next claim
  /// travels while this one is worked on.
  __device__ bool Next(CommList<Tile, kCollective>& list, uint32_t* claim) {
    if (FirstWarp()) {
      const CommStep step = list.Find(__shfl_sync(kFullWarp, *claim, 0));
      *claim = Claim();
      ptx::BarrierSync(kBarrier, kCommThreads);
      if (thread_ == 0) mailbox_.step = step;
    } else {
      ptx::BarrierSync(kBarrier, kCommThreads);
    }
    ptx::BarrierSync(kBarrier, kCommThreads);
    return mailbox_.step.exists;
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
    const RowPosition begin = params_.rows.Locate(item.rows.begin);
    const uint32_t count = item.rows.end - item.rows.begin;
    for (uint32_t row = FirstRow(); row < count; row += kRowsPerPass * kPlacesInFlight) {
      Place places[kPlacesInFlight];
      Sums sums = {};
#pragma unroll
      for (int p = 0; p < kPlacesInFlight; ++p) {
        places[p] = PlaceOf(item, begin, row + p * kRowsPerPass, /*own_rows=*/true);
      }
      ReducerPolicy::template Sum<Element>(params_, places, sums);
#pragma unroll
      for (int p = 0; p < kPlacesInFlight; ++p) {
        if (!places[p].live) continue;
        StoreOutputRow(places[p].output_row, ColumnOf(item), sums[p]);
        if (kCollective == Collective::kAllReduce) {
          StoreResult(places[p].output_row, ColumnOf(item), sums[p]);
        }
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
    if (params_.output_type == OutputType::kFloat32) {
      CopyRows<2>(item);
    } else {
      CopyRows<1>(item);
    }
  }

  /// Copies results, kVectors x 16 bytes for eight columns, to the output. Rows are equally far
  /// apart on both sides.
  template <int kVectors>
  __device__ void CopyRows(const CommItem& item) const {
    constexpr uint32_t kPlaces = kCopiesInFlight / kVectors;
    const uint32_t column = ColumnOf(item);
    const uint64_t workspace = params_.workspace[params_.rank].value;
    const uint64_t from_pitch = params_.data_pitch * OutputBytes(params_.output_type);
    const uint64_t to_pitch = params_.output_pitch * OutputBytes(params_.output_type);
    const RowPosition begin = params_.rows.Locate(item.rows.begin);
    const uint32_t count = item.rows.end - item.rows.begin;
    for (uint32_t row = FirstRow(); row < count; row += kRowsPerPass * kPlaces) {
      const uint64_t from = workspace + ResultOffset(params_, item.rows.begin + row, column);
      auto* to = static_cast<uint8_t*>(OutputAddress(params_, item.rows.begin + row, column));
      ptx::Vector loaded[kPlaces][kVectors];
      uint32_t live = 0;
#pragma unroll
      for (uint32_t p = 0; p < kPlaces; ++p) {
        if (!PlaceOf(item, begin, row + p * kRowsPerPass, /*own_rows=*/false).live) continue;
        live |= 1u << p;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const uint64_t address = from + p * kRowsPerPass * from_pitch + 16 * v;
          loaded[p][v] = ptx::LoadVector(reinterpret_cast<const void*>(address));
        }
      }
#pragma unroll
      for (uint32_t p = 0; p < kPlaces; ++p) {
        if ((live >> p & 1) == 0) continue;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          ptx::StoreVector(to + p * kRowsPerPass * to_pitch + 16 * v, loaded[p][v]);
        }
      }
    }
  }

  /// This thread's first row of an item; its columns are the same in all rows.
  __device__ uint32_t FirstRow() const { return thread_ / kVectorsPerRow; }
  __device__ uint32_t ColumnOf(const CommItem& item) const {
    return item.first_column + thread_ % kVectorsPerRow * kVectorElements;
  }

  /// The thread's place in the item's `index`-th row; live if that is this rank's row, or
  /// another's. `begin` is where the item's first row is.
  __device__ Place PlaceOf(const CommItem& item, RowPosition begin, uint32_t index,
                           bool own_rows) const {
    const RowPosition at = params_.rows.Advance(begin, index);
    const uint32_t row = item.rows.begin + index;
    const uint32_t in_shard = at.row - params_.rank * params_.rows.shard_rows;  // huge if not own
    const uint32_t shard_row = at.batch * params_.rows.shard_rows + in_shard;
    const bool all_reduce = kCollective == Collective::kAllReduce;
    Place place;
    place.data = DataOffset(params_, kReducer == Reducer::kPush ? shard_row : row, ColumnOf(item));
    place.output_row = all_reduce ? row : shard_row;
    place.live = row < item.rows.end && ColumnOf(item) < params_.n &&
                 (in_shard < params_.rows.shard_rows) == own_rows;
    return place;
  }

  __device__ void StoreOutputRow(uint32_t row, uint32_t column,
                                 const float (&sums)[kVectorElements]) const {
    auto* to = static_cast<uint8_t*>(OutputAddress(params_, row, column));
    StoreAs<Element>(params_.output_type, sums,
                     [&](int half, const ptx::Vector& v) { ptx::StoreVector(to + 16 * half, v); });
  }

  __device__ void StoreResult(uint32_t row, uint32_t column,
                              const float (&sums)[kVectorElements]) const {
    const uint64_t offset = ResultOffset(params_, row, column);
    StoreAs<Element>(params_.output_type, sums, [&](int half, const ptx::Vector& v) {
      ReducerPolicy::Broadcast(params_, offset + 16 * half, v);
    });
  }

  /// Fills what a failed launch leaves unwritten, so that nobody takes old memory for a sum.
  __device__ void Poison(const CommItem& item, bool own_rows) const {
    const RowPosition begin = params_.rows.Locate(item.rows.begin);
    const uint32_t count = item.rows.end - item.rows.begin;
    for (uint32_t row = FirstRow(); row < count; row += kRowsPerPass) {
      const Place place = PlaceOf(item, begin, row, own_rows);
      if (place.live) StoreOutputRow(place.output_row, ColumnOf(item), NotANumber().values);
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
    const uint64_t stride = uint64_t{gridDim.x} * kCommThreads;
    for (uint64_t index = blockIdx.x * kCommThreads + thread_; index < all; index += stride) {
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

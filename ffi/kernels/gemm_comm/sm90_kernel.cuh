// GEMM + reduce-scatter / all-reduce on SM90: wires the roles of a CTA together.
//
//   warp 0       claims tiles and fills the ring by TMA
//   warp 1       publishes tiles that have been stored
//   warps 2, 3   communication
//   warps 4-11   two math warpgroups; each warp stores its rows where their owners want them
//
// Twelve warps and not sixteen: ptxas does not fit a 64x256 wgmma under the 128 registers that 512
// threads would leave at kernel entry, whatever setmaxnreg grants later.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/comm/comm_loop.cuh"
#include "kernels/comm/tile_sink.cuh"
#include "kernels/epilogue/sm90_staging.cuh"
#include "kernels/mainloop/sm90_load.cuh"
#include "kernels/mainloop/sm90_math.cuh"
#include "kernels/mainloop/tile_queue.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/setmaxnreg.cuh"
#include "kernels/schedule/tile_scheduler.cuh"
#include "kernels/sync/leave.cuh"

namespace jax_symm {

template <typename Tile, typename ReducerPolicy, Collective kCollective>
class Sm90GemmComm {
 public:
  __device__ Sm90GemmComm(typename Tile::SharedStorage& shared, const CUtensorMap& x_map,
                          const CUtensorMap& w_map, const KernelParams& params)
      : shared_(shared),
        x_map_(x_map),
        w_map_(w_map),
        params_(params),
        cta_(kPaired ? ptx::ClusterCtaRank() : 0),
        scheduler_(params) {}

  __device__ void Run() {
    const uint32_t warp = threadIdx.x / 32;
    PendingClaim claim = {};
    if (threadIdx.x == 0) {
      if (cta_ == 0) claim = scheduler_.BeginClaim();  // on its way while the barriers are made
      Prepare();
    }
    SyncCluster();
    if (warp < 4) {
      ptx::ReleaseRegisters<kServiceRegisters>();
      if (warp == 0) {
        Load(claim);
      } else if (warp == 1) {
        Publish();
      } else {
        Communicate();
      }
    } else {
      ptx::AcquireRegisters<kMathRegisters>();
      Multiply(warp / 4 - 1);
    }
    __syncwarp();
    SyncCluster();
    if (warp == 0) LeaveLaunch(params_);
  }

 private:
  using PendingClaim = typename TileScheduler<Tile>::PendingClaim;

  static constexpr bool kPaired = Tile::kCluster > 1;
  static constexpr bool kRowsSplit = Tile::kWarpgroupsAlongN == 1;
  static constexpr uint32_t kCommBarrier = 1;
  // 128 * (152 + 2 * 176) registers: 64,512 of the 65,536 of an SM.
  static constexpr uint32_t kServiceRegisters = 152;
  static constexpr uint32_t kMathRegisters = 176;

  __device__ void Prepare() {
    ptx::PrefetchTensorMap(&x_map_);
    ptx::PrefetchTensorMap(&w_map_);
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::MbarrierInit(&shared_.stage_full[i], 1);
      ptx::MbarrierInit(&shared_.stage_empty[i], Tile::kCluster * Tile::kMathWarpgroups * 4);
    }
    for (auto& stored : shared_.tile_stored) ptx::MbarrierInit(&stored, Tile::kMathWarps);
    ptx::MbarrierInit(&shared_.verdict_known, 1);
    for (int i = 0; i < Tile::kQueueSlots; ++i) {
      ptx::MbarrierInit(&shared_.queue_full[i], 1);
      ptx::MbarrierInit(&shared_.queue_empty[i], Tile::kQueueReaders);
    }
    ptx::MbarrierInitFence();
  }

  __device__ static void SyncCluster() {
    if constexpr (kPaired) {
      ptx::ClusterSync();
    } else {
      __syncthreads();
    }
  }

  __device__ void Load(const PendingClaim& claim) {
    const bool first_lane = (threadIdx.x & 31) == 0;
    if (cta_ == 0) {
      if (first_lane) ClaimAndLoad(claim);
      return;
    }
    TileQueueReader<Tile> queue;
    uint32_t position;
    while (queue.Pop(shared_, &position)) {
      if (first_lane) LoadTile(position);
      __syncwarp();
    }
  }

  /// One lane of the cluster's leader. The next claim is under way while this tile is loaded.
  __device__ void ClaimAndLoad(const PendingClaim& first) {
    TileQueueWriter<Tile> queue;
    uint32_t position = scheduler_.FinishClaim(first);
    while (position != kNoMoreTiles) {
      queue.Push(shared_, position);
      const PendingClaim next = scheduler_.BeginClaim();
      LoadTile(position);
      position = scheduler_.FinishClaim(next);
    }
    queue.Push(shared_, kNoMoreTiles);
  }

  __device__ void LoadTile(uint32_t position) {
    const TileId tile = scheduler_.Decode(position, cta_);
    loader_.LoadTile(shared_, &x_map_, &w_map_, cta_, tile.m * Tile::kTileM, tile.n * Tile::kTileN,
                     KSteps());
  }

  __device__ void Multiply(uint32_t warpgroup) {
    const uint32_t warp = warpgroup * 4 + threadIdx.x / 32 % 4;
    TileQueueReader<Tile> queue;
    Sm90Math<Tile> math(shared_, warpgroup);
    PipelineState<Tile::kStoredSlots> stored;
    uint32_t position;
    while (queue.Pop(shared_, &position)) {
      float sums[Sm90Math<Tile>::kAccumulators];
      WarpRows rows;
      math.Accumulate(sums, KSteps(), [&] { rows = FindRows(position, warp); });
      // Once known the verdict stays, so later tiles find this phase completed.
      ptx::MbarrierWait(&shared_.verdict_known, 0);
      if (shared_.may_store == 0) rows.address = 0;
      StoreAccumulators<Tile>(shared_, warp, rows, sums);
      __syncwarp();
      if (Lane() == 0) ptx::MbarrierArrive(&shared_.tile_stored[stored.slot]);
      stored.Advance();
    }
  }

  __device__ WarpRows FindRows(uint32_t position, uint32_t warp) const {
    const TileSink<Tile, ReducerPolicy::kReducer> sink(params_);
    const TileId tile = scheduler_.Decode(position, cta_);
    const uint32_t warpgroup_n = kRowsSplit ? 0 : warp / 4 * Tile::kWarpgroupN;
    const uint32_t column = tile.n * Tile::kTileN + warpgroup_n;
    const uint32_t row =
        tile.m * Tile::kTileM + (kRowsSplit ? warp : warp % 4) * Tile::kWarpM + Lane() % 16;
    return {sink.HasRow(row) ? reinterpret_cast<uint64_t>(sink.RowPointer(row, column)) : 0,
            static_cast<int32_t>(params_.n - column)};
  }

  /// Says whether this launch may store, and publishes each tile once all math warps have stored.
  __device__ void Publish() {
    const TileSink<Tile, ReducerPolicy::kReducer> sink(params_);
    const bool may_store = sink.BeforeFirstStore();
    if (Lane() == 0) {
      shared_.may_store = may_store;
      ptx::MbarrierArrive(&shared_.verdict_known);
    }
    TileQueueReader<Tile> queue;
    PipelineState<Tile::kStoredSlots> stored;
    uint32_t position;
    while (queue.Pop(shared_, &position)) {
      ptx::MbarrierWait(&shared_.tile_stored[stored.slot], stored.parity);
      stored.Advance();
      if (may_store) sink.Publish(scheduler_.Decode(position, cta_));
    }
  }

  __device__ void Communicate() {
    static_assert(sizeof(CommMailbox) <= sizeof(shared_.comm_mailbox));
    auto& mailbox = *reinterpret_cast<CommMailbox*>(shared_.comm_mailbox);
    CommLoop<Tile, ReducerPolicy, kCollective, kCommBarrier>(params_, mailbox, threadIdx.x - 64)
        .Run();
  }

  __device__ int KSteps() const { return (params_.k + Tile::kTileK - 1) / Tile::kTileK; }

  typename Tile::SharedStorage& shared_;
  const CUtensorMap& x_map_;
  const CUtensorMap& w_map_;
  const KernelParams& params_;
  const uint32_t cta_;
  const TileScheduler<Tile> scheduler_;
  Sm90Loader<Tile> loader_;
};

}  // namespace jax_symm

// clang-format off
/// One kernel. Its name is what dispatch asks for.
#define JAX_SYMM_SM90_KERNEL(element, Element, weights, kWeights, m, n, stages, cluster, reducer, \
                             ReducerPolicy, collective, kCollective)                              \
  extern "C" __global__ void __launch_bounds__(384, 1)                                            \
  jax_symm_sm90_##element##_##weights##_##m##x##n##x##cluster##_##reducer##_##collective(         \
      const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,       \
      const __grid_constant__ jax_symm::KernelParams params) {                                    \
    using Tile = jax_symm::Sm90Tile<Element, jax_symm::WeightLayout::kWeights, m, n, stages,      \
                                    cluster>;                                                     \
    static_assert(Tile::kThreads == 384);                                                         \
    extern __shared__ uint8_t dynamic_shared[];                                                   \
    auto& shared = *reinterpret_cast<Tile::SharedStorage*>(dynamic_shared);                       \
    jax_symm::Sm90GemmComm<Tile, jax_symm::ReducerPolicy, jax_symm::Collective::kCollective>(     \
        shared, x_map, w_map, params)                                                             \
        .Run();                                                                                   \
  }

#define JAX_SYMM_SM90_REDUCERS(element, Element, weights, kWeights, m, n, stages, cluster,        \
                               collective, kCollective)                                           \
  JAX_SYMM_SM90_KERNEL(element, Element, weights, kWeights, m, n, stages, cluster, push,          \
                       PushReducer, collective, kCollective)                                      \
  JAX_SYMM_SM90_KERNEL(element, Element, weights, kWeights, m, n, stages, cluster, pull,          \
                       PullReducer, collective, kCollective)                                      \
  JAX_SYMM_SM90_KERNEL(element, Element, weights, kWeights, m, n, stages, cluster, multicast,     \
                       MulticastReducer, collective, kCollective)

/// The kernels of one shape, for one element type and weight layout.
#define JAX_SYMM_SM90_KERNELS(element, Element, weights, kWeights, m, n, stages, cluster)         \
  JAX_SYMM_SM90_REDUCERS(element, Element, weights, kWeights, m, n, stages, cluster, rs,          \
                         kReduceScatter)                                                          \
  JAX_SYMM_SM90_REDUCERS(element, Element, weights, kWeights, m, n, stages, cluster, ar,          \
                         kAllReduce)
// clang-format on

// GEMM + reduce-scatter / all-reduce on SM90: wires the roles of a CTA together.
//
//   warp 0       claims tiles and fills the ring by TMA
//   warp 1       stores finished tiles where their owners want them, and publishes them
//   warps 2, 3   communication
//   warps 4-11   two math warpgroups
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
        Store();
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
    for (int i = 0; i < Tile::kStagingBuffers; ++i) {
      ptx::MbarrierInit(&shared_.staging_full[i], 128);
      for (auto& empty : shared_.staging_empty) ptx::MbarrierInit(&empty[i], 1);
    }
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
    TileQueueReader<Tile> queue;
    Sm90Math<Tile> math(shared_, warpgroup);
    uint32_t position;
    for (uint32_t count = 0; queue.Pop(shared_, &position); ++count) {
      float d[Sm90Math<Tile>::kAccumulators];
      math.Accumulate(d, KSteps());
      StageAccumulators<Tile>(shared_, count, warpgroup, d);
    }
  }

  __device__ void Store() {
    const TileSink<Tile, ReducerPolicy::kReducer> sink(params_);
    const bool may_store = sink.BeforeFirstStore();
    TileQueueReader<Tile> queue;
    StagingPiece<Tile> piece{0};
    uint32_t position;
    while (queue.Pop(shared_, &position)) {
      const TileId tile = scheduler_.Decode(position, cta_);
      const uint32_t n0 = tile.n * Tile::kTileN;
      StagedRows rows;
      for (int warpgroup = 0; warpgroup < Tile::kMathWarpgroups; ++warpgroup) {
        const uint32_t first_column = kRowsSplit ? 0 : warpgroup * Tile::kWarpgroupN;
        if (kRowsSplit || warpgroup == 0) {
          const uint32_t row = tile.m * Tile::kTileM + warpgroup * Tile::kWarpgroupM;
          rows = FindRows(sink, may_store, row, n0);
        }
        for (int i = 0; i < Tile::kStagingPieces; ++i, ++piece.index) {
          StorePiece<Tile>(shared_, piece, rows, first_column + i * Tile::kStagingColumns,
                           static_cast<int>(params_.n - n0));
        }
      }
      __syncwarp();
      if (may_store) sink.Publish(tile);
    }
  }

  template <typename Sink>
  __device__ StagedRows FindRows(const Sink& sink, bool may_store, uint32_t first_row,
                                 uint32_t column) const {
    StagedRows rows;
#pragma unroll
    for (int half = 0; half < StagedRows::kHalves; ++half) {
      const uint32_t row = first_row + half * 32 + (threadIdx.x & 31);
      rows.address[half] = may_store && sink.HasRow(row)
                               ? reinterpret_cast<uint64_t>(sink.RowPointer(row, column))
                               : 0;
    }
    return rows;
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

// The fused GEMM + reduce-scatter / all-reduce kernel of SM100: ten warps, each with one role.
//
//   warps 0-3   epilogue: tensor memory -> registers -> partials, here or at their owners
//   warps 4-7   communication: sums of this rank's rows
//   warp  8     MMA (one thread of CTA 0 of the cluster)
//   warp  9     claims (one thread of CTA 0) and TMA loads (one thread)
//
// The epilogue has the low warps: the communication spins, and where the two compete for issue
// slots, other ranks wait for the epilogue.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/comm/comm_loop.cuh"
#include "kernels/comm/reducers.cuh"
#include "kernels/comm/tile_sink.cuh"
#include "kernels/epilogue/sm100_store.cuh"
#include "kernels/mainloop/sm100_load.cuh"
#include "kernels/mainloop/sm100_mma.cuh"
#include "kernels/mainloop/tile_queue.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/elect.cuh"
#include "kernels/schedule/tile_scheduler.cuh"
#include "kernels/sync/leave.cuh"

namespace jax_symm {

inline constexpr uint32_t kSm100EpilogueBarrier = 1;
inline constexpr uint32_t kSm100CommBarrier = 2;

inline constexpr uint32_t kSm100FirstCommWarp = 4;
inline constexpr uint32_t kSm100MmaWarp = 8;
inline constexpr uint32_t kSm100LoadWarp = 9;

template <typename Tile>
struct Sm100KernelStorage {
  typename Tile::SharedStorage mainloop;
  CommMailbox mailbox;
};

template <typename Tile>
__device__ __forceinline__ void ClusterOrCtaSync() {
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    ptx::ClusterSync();
  }
}

template <typename Tile>
__device__ void InitBarriers(typename Tile::SharedStorage& shared) {
  for (int i = 0; i < Tile::kStages; ++i) {
    ptx::MbarrierInit(&shared.stage_full[i], 1);
    ptx::MbarrierInit(&shared.stage_empty[i], 1);
  }
  for (int i = 0; i < Tile::kAccumulators; ++i) {
    ptx::MbarrierInit(&shared.accumulator_full[i], 1);
    ptx::MbarrierInit(&shared.accumulator_empty[i], Tile::kCluster * Tile::kEpilogueWarps);
  }
  for (int i = 0; i < Tile::kQueueSlots; ++i) {
    ptx::MbarrierInit(&shared.queue_full[i], 1);
    ptx::MbarrierInit(&shared.queue_empty[i], Tile::kCluster * Tile::kQueueReaderWarps);
  }
  ptx::MbarrierInitFence();
}

template <typename Tile>
__device__ __forceinline__ int StepsOf(const KernelParams& params) {
  return static_cast<int>((params.k + Tile::kTileK - 1) / Tile::kTileK);
}

/// One thread. Claims one tile ahead of the one that it loads, so that the loads hide the claim.
template <typename Tile>
__device__ void LoadRole(typename Tile::SharedStorage& shared, const CUtensorMap* x_map,
                         const CUtensorMap* w_map, const KernelParams& params, uint32_t cta) {
  ptx::PrefetchTensorMap(x_map);
  ptx::PrefetchTensorMap(w_map);
  const TileScheduler<Tile> scheduler(params);
  TileQueueWriter<Tile> claims;
  TileQueueReader<Tile> queue;
  Sm100Loader<Tile> loader;
  if (cta == 0) claims.Push(shared, scheduler.Claim());
  uint32_t position;
  while (queue.PopAlone(shared, &position)) {
    typename TileScheduler<Tile>::PendingClaim next = {};
    if (cta == 0) next = scheduler.BeginClaim();
    const TileId tile = scheduler.Decode(position, cta);
    loader.LoadTile(shared, x_map, w_map, cta, static_cast<int>(tile.m * Tile::kTileM),
                    static_cast<int>(tile.n * Tile::kTileN), StepsOf<Tile>(params));
    if (cta == 0) claims.Push(shared, scheduler.FinishClaim(next));
  }
  loader.Drain(shared);
}

/// One thread.
template <typename Tile>
__device__ void MmaRole(typename Tile::SharedStorage& shared, const KernelParams& params,
                        uint32_t cta) {
  TileQueueReader<Tile> queue;
  Sm100Mma<Tile> mma;
  uint32_t position;
  while (queue.PopAlone(shared, &position)) {
    if (cta == 0) mma.MultiplyTile(shared, StepsOf<Tile>(params));
  }
}

template <typename Tile, Reducer kReducer>
__device__ void EpilogueRole(typename Tile::SharedStorage& shared, const KernelParams& params,
                             uint32_t cta) {
  const uint32_t warp = threadIdx.x / 32;
  const TileSink<Tile, kReducer> sink(params);
  const TileOrder<Tile> order(params);
  TileQueueReader<Tile> queue;
  Sm100AccumulatorReader<Tile> accumulators;
  const bool may_store = sink.BeforeFirstStore();
  uint32_t position;
  while (queue.Pop(shared, &position)) {
    const TileId tile = order.Decode(position, cta);
    const uint32_t column = tile.n * Tile::kTileN;
    const TileShare share = {tile.m * Tile::kTileM + warp * 32, column,
                             static_cast<int>(min(params.n - column, uint32_t{Tile::kTileN})),
                             may_store};
    accumulators.Wait(shared);
    if (!sink.HasRow(share.row)) {
      accumulators.Release(shared);
    } else if constexpr (kReducer == Reducer::kPush) {
      StoreThroughStaging(shared, accumulators, sink, share);
    } else {
      StoreByLane(shared, accumulators, sink, share);
    }
    // The warps take turns, since a publication waits for all stores to arrive.
    const bool all_stored =
        ptx::BarrierAnd(kSm100EpilogueBarrier, Tile::kEpilogueWarps * 32, may_store);
    if (all_stored && position % Tile::kEpilogueWarps == warp) sink.Publish(tile);
  }
}

template <typename Tile, typename ReducerPolicy, Collective kCollective>
__device__ void RunRoles(Sm100KernelStorage<Tile>& storage, const CUtensorMap* x_map,
                         const CUtensorMap* w_map, const KernelParams& params, uint32_t cta) {
  const uint32_t warp = threadIdx.x / 32;
  auto& shared = storage.mainloop;
  if (warp < kSm100FirstCommWarp) {
    EpilogueRole<Tile, ReducerPolicy::kReducer>(shared, params, cta);
  } else if (warp < kSm100MmaWarp) {
    CommLoop<Tile, ReducerPolicy, kCollective, kSm100CommBarrier> loop(
        params, storage.mailbox, threadIdx.x - kSm100FirstCommWarp * 32);
    loop.Run();
  } else if (warp == kSm100MmaWarp) {
    if (ptx::ElectOne()) MmaRole<Tile>(shared, params, cta);
  } else {
    if (ptx::ElectOne()) LoadRole<Tile>(shared, x_map, w_map, params, cta);
  }
  __syncwarp();
}

/// The body of every kernel. `cta` 1 of a cluster never leaves before CTA 0, whose MMA reads its
/// shared memory and signals its barriers.
template <typename Tile, typename ReducerPolicy, Collective kCollective>
__device__ __forceinline__ void Sm100GemmComm(const CUtensorMap* x_map, const CUtensorMap* w_map,
                                              const KernelParams& params) {
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  auto& storage = *reinterpret_cast<Sm100KernelStorage<Tile>*>(dynamic_shared);
  static_assert(sizeof(Sm100KernelStorage<Tile>) <= Tile::kSharedBytes);
  auto& shared = storage.mainloop;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t cta = Tile::kCluster == 1 ? 0 : ptx::ClusterCtaRank();

  if (warp == 0) {
    ptx::TcgenAlloc<Tile::kCluster>(&shared.tensor_base, Tile::kTensorColumns);
    ptx::TcgenRelinquish<Tile::kCluster>();
  }
  if (threadIdx.x == kSm100LoadWarp * 32) InitBarriers<Tile>(shared);
  __syncwarp();
  ptx::TcgenFenceBeforeSync();
  ClusterOrCtaSync<Tile>();
  ptx::TcgenFenceAfterSync();

  RunRoles<Tile, ReducerPolicy, kCollective>(storage, x_map, w_map, params, cta);

  ptx::TcgenFenceBeforeSync();
  ClusterOrCtaSync<Tile>();
  ptx::TcgenFenceAfterSync();
  if (warp == 0) ptx::TcgenDealloc<Tile::kCluster>(shared.tensor_base, Tile::kTensorColumns);
  if (warp == kSm100FirstCommWarp) LeaveLaunch(params);
}

}  // namespace jax_symm

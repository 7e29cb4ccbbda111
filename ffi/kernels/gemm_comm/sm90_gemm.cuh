// GEMM without communication: one rank's x @ w straight to the output.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/epilogue/sm90_staging.cuh"
#include "kernels/mainloop/sm90_load.cuh"
#include "kernels/mainloop/sm90_math.cuh"
#include "kernels/mainloop/tile_queue.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/setmaxnreg.cuh"

namespace jax_symm {

struct GemmParams {
  void* output;
  int64_t pitch;  // elements
  int m;
  int n;
  int k_steps;
  int m_groups;  // tiles of kCluster * tile_m rows
  int n_tiles;
  int raster_m;  // m_groups per raster band
};

struct TileCoordinate {
  int m0;
  int n0;
};

template <typename Tile>
__device__ __forceinline__ TileCoordinate DecodeTile(const GemmParams& p, uint32_t tile,
                                                     uint32_t cta_rank) {
  const int index = static_cast<int>(tile);
  const int band_tiles = p.raster_m * p.n_tiles;
  const int band = index / band_tiles;
  const int first = band * p.raster_m;
  const int height = min(p.raster_m, p.m_groups - first);
  const int in_band = index - band * band_tiles;
  const int n_tile = in_band / height;
  const int m_group = first + in_band - n_tile * height;
  return {(m_group * Tile::kCluster + static_cast<int>(cta_rank)) * Tile::kTileM,
          n_tile * Tile::kTileN};
}

template <typename Tile>
__device__ void InitBarriers(typename Tile::SharedStorage& shared) {
  for (int i = 0; i < Tile::kStages; ++i) {
    ptx::MbarrierInit(&shared.stage_full[i], 1);
    ptx::MbarrierInit(&shared.stage_empty[i], Tile::kCluster * Tile::kMathWarpgroups * 4);
  }
  for (int i = 0; i < Tile::kStagingBuffers; ++i) {
    ptx::MbarrierInit(&shared.staging_full[i], 128);
    ptx::MbarrierInit(&shared.staging_empty[i], 1);
  }
  for (int i = 0; i < Tile::kQueueSlots; ++i) {
    ptx::MbarrierInit(&shared.queue_full[i], 1);
    ptx::MbarrierInit(&shared.queue_empty[i], Tile::kQueueReaders);
  }
  ptx::MbarrierInitFence();
}

/// One lane of the leader CTA: claims tiles, tells every role of the cluster, loads its own share.
template <typename Tile>
__device__ void ClaimAndLoad(typename Tile::SharedStorage& shared, const GemmParams& p,
                             const CUtensorMap* x_map, const CUtensorMap* w_map) {
  const uint32_t tiles = p.m_groups * p.n_tiles;
  TileQueueWriter<Tile> queue;
  Sm90Loader<Tile> loader;
  for (uint32_t tile = blockIdx.x / Tile::kCluster; tile < tiles;
       tile += gridDim.x / Tile::kCluster) {
    queue.Push(shared, tile);
    const TileCoordinate at = DecodeTile<Tile>(p, tile, 0);
    loader.LoadTile(shared, x_map, w_map, 0, at.m0, at.n0, p.k_steps);
  }
  queue.Push(shared, kNoMoreTiles);
}

template <typename Tile>
__device__ void LoadRole(typename Tile::SharedStorage& shared, const GemmParams& p,
                         const CUtensorMap* x_map, const CUtensorMap* w_map, uint32_t cta_rank) {
  const bool first_lane = (threadIdx.x & 31) == 0;
  if (Tile::kCluster == 1 || cta_rank == 0) {
    if (first_lane) ClaimAndLoad<Tile>(shared, p, x_map, w_map);
    return;
  }
  TileQueueReader<Tile> queue;
  Sm90Loader<Tile> loader;
  uint32_t tile;
  while (queue.Pop(shared, &tile)) {
    const TileCoordinate at = DecodeTile<Tile>(p, tile, cta_rank);
    if (first_lane) loader.LoadTile(shared, x_map, w_map, cta_rank, at.m0, at.n0, p.k_steps);
    __syncwarp();
  }
}

template <typename Tile>
__device__ void MathRole(typename Tile::SharedStorage& shared, const GemmParams& p,
                         uint32_t warpgroup) {
  TileQueueReader<Tile> queue;
  Sm90Math<Tile> math(shared, warpgroup);
  uint32_t tile;
  for (uint32_t count = 0; queue.Pop(shared, &tile); ++count) {
    float d[Sm90Math<Tile>::kAccumulators];
    math.Accumulate(d, p.k_steps);
    StageAccumulators<Tile>(shared, count, warpgroup, d);
  }
}

template <typename Tile>
__device__ void StoreRole(typename Tile::SharedStorage& shared, const GemmParams& p,
                          uint32_t cta_rank) {
  using Element = typename Tile::Element;
  constexpr bool kRowsSplit = Tile::kWarpgroupsAlongN == 1;
  TileQueueReader<Tile> queue;
  StagingPiece<Tile> piece{0};
  uint32_t tile;
  while (queue.Pop(shared, &tile)) {
    const TileCoordinate at = DecodeTile<Tile>(p, tile, cta_rank);
    for (int i = 0; i < Tile::kMathWarpgroups * Tile::kStagingPieces; ++i, ++piece.index) {
      const int warpgroup = i / Tile::kStagingPieces;
      const int m0 = at.m0 + (kRowsSplit ? warpgroup * Tile::kWarpgroupM : 0);
      const int n0 = at.n0 + (kRowsSplit ? 0 : warpgroup * Tile::kWarpgroupN) +
                     i % Tile::kStagingPieces * Tile::kStagingColumns;
      StoreStagedRows<Tile>(shared, piece, p.n - n0, [&](int row) -> void* {
        const int m = m0 + row;
        return m < p.m ? static_cast<Element*>(p.output) + m * p.pitch + n0 : nullptr;
      });
    }
  }
}

template <typename Tile, int kLowRegisters, int kMathRegisters>
__device__ void GemmKernel(const CUtensorMap& x_map, const CUtensorMap& w_map,
                           const GemmParams& p) {
  extern __shared__ uint8_t dynamic_shared[];
  auto& shared = *reinterpret_cast<typename Tile::SharedStorage*>(dynamic_shared);
  const uint32_t warpgroup = threadIdx.x / 128;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t cta_rank = Tile::kCluster == 1 ? 0 : ptx::ClusterCtaRank();
  if (threadIdx.x == 0) {
    ptx::PrefetchTensorMap(&x_map);
    ptx::PrefetchTensorMap(&w_map);
    InitBarriers<Tile>(shared);
  }
  if (Tile::kCluster > 1) {
    ptx::ClusterSync();
  } else {
    __syncthreads();
  }
  if (warpgroup == 0) {
    ptx::ReleaseRegisters<kLowRegisters>();
    if (warp == 0) LoadRole<Tile>(shared, p, &x_map, &w_map, cta_rank);
    if (warp == 1) StoreRole<Tile>(shared, p, cta_rank);
  } else {
    ptx::AcquireRegisters<kMathRegisters>();
    MathRole<Tile>(shared, p, warpgroup - 1);
  }
  if (Tile::kCluster > 1) {
    __syncwarp();
    ptx::ClusterSync();
  }
}

}  // namespace jax_symm

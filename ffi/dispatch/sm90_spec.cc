#include "dispatch/sm90_spec.h"

#include <algorithm>

#include "kernels/gemm_comm/sm90_shapes.h"

namespace jax_symm {
namespace {

template <int kTileM, int kTileN, int kStages, int kCluster>
constexpr TileShape MakeShape() {
  // The element type only has to be 16 bits wide here.
  using Kn = Sm90Tile<uint16_t, WeightLayout::kKN, kTileM, kTileN, kStages, kCluster>;
  using Nk = Sm90Tile<uint16_t, WeightLayout::kNK, kTileM, kTileN, kStages, kCluster>;
  static_assert(Kn::kSharedBytes == Nk::kSharedBytes);
  // A box of a [k, n] weight is 64 rows of k; of an [n, k] weight, a CTA's share of the n.
  return {
      kTileM, kTileN, kCluster, kStages, Kn::kThreads, Kn::kSharedBytes, {Kn::kTileK, Nk::kBoxN}};
}

#define JAX_SYMM_SHAPE(m, n, stages, cluster) MakeShape<m, n, stages, cluster>(),
constexpr TileShape kShapes[] = {JAX_SYMM_SM90_SHAPES(JAX_SYMM_SHAPE)};
#undef JAX_SYMM_SHAPE

constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/// A k step of a smaller tile takes less tensor time but moves more bytes per flop.
double StepCost(const TileShape& shape) {
  const double area = shape.tile_m * shape.tile_n / (128.0 * 256.0);
  const double loaded_rows = shape.tile_m + shape.tile_n / static_cast<double>(shape.cluster);
  constexpr double kPerLoadedRow = 1.0 / 1024.0;
  return std::max(area, loaded_rows * kPerLoadedRow) + 0.03;
}

/// Prologue and the part of the epilogue that no other tile hides, in k steps of 128x256.
constexpr double kTileOverhead = 1.5;

}  // namespace

std::span<const TileShape> Sm90Shapes() { return kShapes; }

double Sm90GemmCost(const GemmProblem& problem, const TileShape& shape, uint32_t ctas) {
  const uint32_t clusters = std::max(1u, ctas / shape.cluster);
  const uint32_t groups = CeilDiv(problem.m(), shape.tile_m * shape.cluster);
  const uint32_t tiles = groups * CeilDiv(problem.n, shape.tile_n);
  const double per_tile = CeilDiv(problem.k, 64) * StepCost(shape) + kTileOverhead;
  return CeilDiv(tiles, clusters) * per_tile;
}

GemmConfig ChooseSm90Config(const GemmProblem& problem, Reducer reducer, uint32_t max_ctas) {
  GemmConfig config = {.arch = Arch::kSm90, .reducer = reducer};
  double best = 0;
  for (const TileShape& shape : kShapes) {
    if (shape.cluster > max_ctas) continue;
    const double cost = Sm90GemmCost(problem, shape, max_ctas);
    if (config.ctas != 0 && cost >= best) continue;
    best = cost;
    const uint32_t groups = CeilDiv(problem.m(), shape.tile_m * shape.cluster);
    const uint32_t tiles = groups * CeilDiv(problem.n, shape.tile_n);
    // About 16 tiles of m by 8 of n are in flight: near a square of the operands in L2.
    config.m_groups_per_band =
        std::min(groups, std::max(1u, 2048 / (shape.tile_m * shape.cluster)));
    config.ctas = std::min(tiles, max_ctas / shape.cluster) * shape.cluster;
    config.shape = shape;
  }
  return config;
}

}  // namespace jax_symm

#include "dispatch/sm100_spec.h"

#include <algorithm>

#include "kernels/gemm_comm/sm100_shapes.h"

namespace jax_symm {
namespace {

template <Reducer kReducer, int kTileM, int kTileN, int kCluster>
constexpr TileShape MakeShape() {
  // The element type only has to be 16 bits wide here.
  using Kn = Sm100ReducerTile<uint16_t, WeightLayout::kKN, kTileN, kCluster, kReducer>;
  using Nk = Sm100ReducerTile<uint16_t, WeightLayout::kNK, kTileN, kCluster, kReducer>;
  static_assert(Kn::kTileM == kTileM);
  static_assert(Kn::kStages == Nk::kStages);
  // A box of a [k, n] weight is 64 rows of k; of an [n, k] weight, a CTA's share of the n.
  return {kTileM,
          kTileN,
          kCluster,
          Kn::kStages,
          Kn::kThreads,
          Kn::kSharedBytes,
          {Kn::kTileK, Nk::kBoxN}};
}

#define JAX_SYMM_PUSH(m, n, cluster) MakeShape<Reducer::kPush, m, n, cluster>(),
#define JAX_SYMM_LOCAL(m, n, cluster) MakeShape<Reducer::kPull, m, n, cluster>(),
constexpr TileShape kPushShapes[] = {JAX_SYMM_SM100_SHAPES(JAX_SYMM_PUSH)};
constexpr TileShape kLocalShapes[] = {JAX_SYMM_SM100_SHAPES(JAX_SYMM_LOCAL)};
#undef JAX_SYMM_LOCAL
#undef JAX_SYMM_PUSH

constexpr uint32_t kTileM = 128;

constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/// A pair loads half of w per CTA, but an odd number of tiles along m wastes one; that costs more
/// than the pair saves while there are few.
uint32_t ClusterFor(const GemmProblem& problem, uint32_t max_ctas) {
  if (max_ctas < 2) return 1;
  return problem.m() >= 1024 || CeilDiv(problem.m(), kTileM) % 2 == 0 ? 2 : 1;
}

/// Wide tiles move fewer bytes per flop, and pay where there is enough work for all CTAs.
uint32_t TileNFor(const GemmProblem& problem, uint32_t cluster) {
  constexpr uint64_t kEnoughWork = uint64_t{24} << 20;
  return cluster == 2 && uint64_t{problem.m()} * problem.k >= kEnoughWork ? 256 : 128;
}

}  // namespace

std::span<const TileShape> Sm100Shapes(Reducer reducer) {
  if (reducer == Reducer::kPush) return kPushShapes;
  return kLocalShapes;
}

// Source: the rules of vLLM's SM100 GEMM-RS (pull request 52079), tuned there on GB300.
GemmConfig ChooseSm100Config(const GemmProblem& problem, Reducer reducer, uint32_t max_ctas) {
  const uint32_t cluster = ClusterFor(problem, max_ctas);
  const uint32_t tile_n = TileNFor(problem, cluster);
  GemmConfig config = {.arch = Arch::kSm100, .reducer = reducer};
  for (const TileShape& shape : Sm100Shapes(reducer)) {
    if (shape.cluster == cluster && shape.tile_n == tile_n) config.shape = shape;
  }
  const uint32_t groups = CeilDiv(problem.m(), kTileM * cluster);
  // With about 148 CTAs, 16 tiles of m by 9 of n are in flight: near a square of operands in L2.
  config.m_groups_per_band = std::min(groups, 2048 / (kTileM * cluster));
  config.ctas = std::min(groups * CeilDiv(problem.n, tile_n), max_ctas / cluster) * cluster;
  return config;
}

}  // namespace jax_symm

#include "dispatch/gemm_config.h"

#include "base/status.h"

namespace jax_symm {

std::string KernelName(const GemmProblem& problem, const GemmConfig& config) {
  const TileShape& s = config.shape;
  return StrCat("jax_symm_", ArchName(config.arch), "_", ElementName(problem.element),
                problem.weights == WeightLayout::kKN ? "_kn_" : "_nk_", s.tile_m, "x", s.tile_n,
                "x", s.cluster, "_", ReducerName(config.reducer),
                problem.collective == Collective::kReduceScatter ? "_rs" : "_ar");
}

std::string Describe(const GemmConfig& config) {
  const TileShape& s = config.shape;
  return StrCat(ArchName(config.arch), " ", ReducerName(config.reducer), " ", s.tile_m, "x",
                s.tile_n, "x64 cluster=", s.cluster, " stages=", s.stages,
                " band=", config.m_groups_per_band, " ctas=", config.ctas);
}

}  // namespace jax_symm

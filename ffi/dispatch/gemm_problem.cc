#include "dispatch/gemm_problem.h"

#include "base/status.h"

namespace jax_symm {

std::string Describe(const GemmProblem& p) {
  return StrCat(p.collective == Collective::kReduceScatter ? "reduce_scatter" : "all_reduce",
                " batch=", p.rows.batch, " m=", p.rows.rows_per_batch, " n=", p.n, " k=", p.k,
                " ranks=", p.ranks, " ", ElementName(p.element), "->", ElementName(p.output),
                p.weights == WeightLayout::kKN ? " w[k,n]" : " w[n,k]");
}

std::string WhyNotSupported(const GemmProblem& p) {
  if (p.element == ElementType::kF32) return "the CUDA kernels take bf16 and f16, got f32";
  if (p.output != p.element && p.output != ElementType::kF32) {
    return StrCat("a result is as the operands or f32, got ", ElementName(p.output));
  }
  if (p.k == 0 || p.k % 8 != 0) return StrCat("k per rank must be a multiple of 8, got ", p.k);
  if (p.n == 0 || p.n % 8 != 0) return StrCat("n must be a multiple of 8, got ", p.n);
  if (p.ranks > kMaxRanks) return StrCat("at most ", kMaxRanks, " ranks, got ", p.ranks);
  const uint64_t padded = uint64_t{p.rows.batch} * p.rows.shard_rows * p.ranks;
  if (padded >= uint64_t{1} << 31) return StrCat("rows must be fewer than 2**31, got ", padded);
  return "";
}

}  // namespace jax_symm

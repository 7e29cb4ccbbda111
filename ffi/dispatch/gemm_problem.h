// One fused call as dispatch sees it: shapes and types, nothing of where the data is.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/layout/row_map.h"
#include "kernels/layout/weight_layout.h"
#include "kernels/layout/workspace_layout.h"
#include "runtime/element_type.h"

namespace jax_symm {

/// x [rows.TotalRows(), k] times w [k, n] on every rank, summed over the ranks.
struct GemmProblem {
  Collective collective = Collective::kReduceScatter;
  ElementType element = ElementType::kBf16;
  ElementType output = ElementType::kBf16;
  WeightLayout weights = WeightLayout::kKN;
  RowMap rows = {1, 1, 1};
  uint32_t ranks = 1;
  uint32_t n = 0;
  uint32_t k = 0;  // of one rank

  uint32_t m() const { return rows.TotalRows(); }
  double flops() const { return 2.0 * m() * n * k; }
};

std::string Describe(const GemmProblem& problem);

/// What no kernel covers is a reason; empty means that the kernels can run it.
std::string WhyNotSupported(const GemmProblem& problem);

}  // namespace jax_symm

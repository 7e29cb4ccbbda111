// The choice of tile shape and grid on Blackwell.
#pragma once

#include <cstdint>
#include <span>

#include "dispatch/gemm_config.h"
#include "dispatch/gemm_problem.h"

namespace jax_symm {

/// Shapes that SM100 kernels are built for. The stages depend on the reducer: push gives some
/// shared memory to staging.
std::span<const TileShape> Sm100Shapes(Reducer reducer);

/// `max_ctas` is what the grid may use: the multiprocessors, less what the caller leaves to others.
GemmConfig ChooseSm100Config(const GemmProblem& problem, Reducer reducer, uint32_t max_ctas);

}  // namespace jax_symm

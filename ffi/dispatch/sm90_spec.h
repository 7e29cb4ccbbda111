// The choice of tile shape and grid on Hopper.
#pragma once

#include <cstdint>
#include <span>

#include "dispatch/gemm_config.h"
#include "dispatch/gemm_problem.h"

namespace jax_symm {

/// Shapes that SM90 kernels are built for.
std::span<const TileShape> Sm90Shapes();

/// Relative time of the matrix product alone with `shape` on `ctas` resident CTAs: whole waves of
/// tiles, each paying for its k steps and its epilogue. 1.0 is one k step of a 128x256 tile.
double Sm90GemmCost(const GemmProblem& problem, const TileShape& shape, uint32_t ctas);

/// The cheapest shape. `max_ctas` is what the grid may use: the multiprocessors, less what the
/// caller leaves to others.
GemmConfig ChooseSm90Config(const GemmProblem& problem, Reducer reducer, uint32_t max_ctas);

}  // namespace jax_symm

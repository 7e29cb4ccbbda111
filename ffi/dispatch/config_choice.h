// Which kernels a device has, and which of them runs a call.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "dispatch/gemm_config.h"
#include "dispatch/gemm_problem.h"

namespace jax_symm {

/// By compute capability. UNIMPLEMENTED, saying which are known, where there are no kernels.
StatusOr<Arch> ArchOf(int major, int minor);

/// By name, as ArchName gives it.
StatusOr<Arch> ArchNamed(const std::string& name);

/// Shapes that kernels of an architecture are built for, whatever the reducer.
std::span<const TileShape> ShapesOf(Arch arch);

GemmConfig ChooseConfig(Arch arch, const GemmProblem& problem, Reducer reducer, uint32_t max_ctas);

}  // namespace jax_symm

// The 24 bits of a flag that say which call raised it: everything that ranks must do alike. Which
// run of it that was tells the epoch. XLA's run id is not part of it: on GPUs each process has its
// own.
#pragma once

#include <cstdint>

#include "dispatch/gemm_config.h"
#include "dispatch/gemm_problem.h"

namespace jax_symm {

/// Of the place in the program and of shapes and types.
uint32_t HashCall(int64_t call_site, const GemmProblem& problem);

/// Of such a call and of what decides where its flags and data lie: ranks whose devices differ
/// could choose otherwise.
uint32_t HashLaunch(uint32_t call, const GemmConfig& config);

}  // namespace jax_symm

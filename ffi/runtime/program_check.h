// Whether a program's call is one that the workspace it found by name was opened for.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace jax_symm {

/// Equal on every rank of a call, so these errors fail no workspace.
template <typename Options, typename Problem>
Status CheckProgram(const Options& options, int64_t axis_size, const Problem& problem,
                    bool all_reduce) {
  if (axis_size != options.world_size) {
    return FailedPrecondition(Describe(problem), ": axis '", options.axis, "' has ", axis_size,
                              " devices in the program, but ", options.world_size,
                              " in workspace '", options.name,
                              "'; open a workspace over the mesh of the program");
  }
  if (all_reduce && !options.all_reduce) {
    return FailedPrecondition(Describe(problem), ": workspace '", options.name,
                              "' was opened without all_reduce; add it to ops");
  }
  return OkStatus();
}

}  // namespace jax_symm

// From a typed problem and a rank's memory to one kernel launch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "dispatch/gemm_config.h"
#include "dispatch/kernel_library.h"
#include "kernels/layout/kernel_params.h"

namespace jax_symm {

/// What a rank's launches have in common: the group's memory as this rank sees it.
struct RankMemory {
  uint32_t rank = 0;
  std::vector<UnicastAddress> workspaces;  // of every rank
  MulticastAddress multicast = {};         // zero without an agreement on multicast
  WorkspaceCapacity capacity = {};
  uint64_t timeout_ns = 0;
  uint64_t abort_word = 0;  // device addresses of pinned host memory
  uint64_t fault_record = 0;
};

/// Device addresses of one call. `x` is [rows, k] and `output` [rows or shard rows, n], dense.
struct CallBuffers {
  uint64_t x = 0;
  uint64_t w = 0;
  uint64_t output = 0;
  uint64_t axis_index = 0;  // one int32
};

/// Need and have if the call does not fit a workspace; empty if it does.
std::string WhyNotFitting(const GemmProblem& problem, const GemmConfig& config,
                          const WorkspaceCapacity& capacity);

/// INVALID_ARGUMENT with need and have if the call does not fit the workspace.
StatusOr<KernelParams> MakeKernelParams(const GemmProblem& problem, const GemmConfig& config,
                                        const RankMemory& memory, const CallBuffers& buffers,
                                        uint32_t call);

/// Enqueues the kernel on `stream`. The device's context is current and the library is prepared.
Status Launch(const KernelLibrary& library, const GemmProblem& problem, const GemmConfig& config,
              const KernelParams& params, const CallBuffers& buffers, driver::Stream stream);

}  // namespace jax_symm

// A workspace on GPUs, as one process sees it: its ranks here, by device.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dispatch/call_gate.h"
#include "dispatch/cuda_rank.h"
#include "runtime/host_workspace.h"
#include "runtime/workspace_registry.h"

namespace jax_symm {

struct CudaLocalRank {
  int device_ordinal = 0;
  int group = 0;
  int rank = 0;
  std::vector<std::shared_ptr<Mapping>> mappings;
  MulticastAddress multicast = {};
};

struct CudaWorkspaceOptions {
  std::string name;
  std::string axis;
  int64_t nonce = 0;
  std::chrono::nanoseconds timeout{0};
  int world_size = 0;
  uint64_t capacity_bytes = 0;
  bool all_reduce = false;
  uint32_t sm_margin = 0;                             // multiprocessors left to others
  std::vector<std::vector<std::string>> rank_labels;  // by group, by rank
  std::vector<CudaLocalRank> locals;
};

/// Bytes of symmetric memory per rank. Depends on its arguments alone, hence equal on all ranks.
StatusOr<uint64_t> CudaWorkspaceBytes(int world_size, uint64_t capacity_bytes, bool all_reduce);

class CudaWorkspace {
 public:
  /// Loads the kernels on every device of `locals` and enters the name into the registry. All
  /// ranks' memory must be zero before any rank opens.
  static StatusOr<std::shared_ptr<CudaWorkspace>> Open(std::shared_ptr<const driver::Api> api,
                                                       CudaWorkspaceOptions options);

  /// Leaves memory that launches may still use to the end of the process.
  ~CudaWorkspace();

  /// Enqueues a call of the device at `device_ordinal`. `site` numbers the call sites of this
  /// process's executables: on its first run the local devices of a group meet (CallGate).
  Status Submit(int device_ordinal, int64_t axis_size, int64_t site, const CudaCall& call,
                driver::Stream stream);

  /// Refuses new calls, waits for the launches, past `timeout` makes them fail, and lets the memory
  /// go once they have ended. Local; idempotent.
  Status Close(std::chrono::nanoseconds timeout);
  /// For finalizers: never waits and never unmaps. ReleaseAbandoned frees the memory.
  static void Abandon(std::shared_ptr<CudaWorkspace> workspace);

  /// The first fault that a launch or this process has seen.
  Status Check() const;
  /// Fails the workspace because `rank` of `group` is lost, and ends the waits for it.
  void Abort(int group, int rank, const std::string& message);

  std::vector<CallCount> Calls() const;
  int64_t generation() const { return generation_; }
  bool closed() const { return gate_.closed(); }

 private:
  using Registry = WorkspaceRegistry<CudaWorkspace>;

  explicit CudaWorkspace(CudaWorkspaceOptions options);
  Status OpenRanks(std::shared_ptr<const driver::Api> api);
  bool Idle() const;
  void ReleaseMemory();

  CudaWorkspaceOptions options_;
  const int64_t generation_;
  std::map<int, std::unique_ptr<CudaRank>> ranks_;  // by device ordinal
  std::map<int, size_t> local_ranks_;               // how many each group has here

  CallGate gate_;
  mutable std::mutex mutex_;
  std::string lost_;  // what Abort was told
};

}  // namespace jax_symm

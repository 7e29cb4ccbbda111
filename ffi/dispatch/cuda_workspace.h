// A workspace on GPUs, as one process sees it: its ranks here, by device.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

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
uint64_t CudaWorkspaceBytes(int world_size, uint64_t capacity_bytes, bool all_reduce);

class CudaWorkspace {
 public:
  /// Loads the kernels on every device of `locals` and enters the name into the registry. All
  /// ranks' memory must be zero before any rank opens.
  static StatusOr<std::shared_ptr<CudaWorkspace>> Open(std::shared_ptr<const driver::Api> api,
                                                       CudaWorkspaceOptions options);

  /// Enqueues a call of the device at `device_ordinal`. `site` is a call site of an executable: on
  /// its first run all local devices meet here before any launches, since a device that still
  /// loads code could not make progress while another waits for it.
  Status Submit(int device_ordinal, int64_t axis_size, const void* site, CudaCall call,
                driver::Stream stream);

  /// Refuses new calls and waits for the launches; past `timeout` they are made to fail. Local;
  /// idempotent.
  Status Close(std::chrono::nanoseconds timeout);
  /// For finalizers: never waits. Memory that launches may still use is kept for ever.
  static void Abandon(std::shared_ptr<CudaWorkspace> workspace);

  Status Check() const;
  /// Ends the waits for `rank` of `group`, whose process is gone.
  void Abort(int group, int rank, const std::string& message);

  std::vector<CallCount> Calls() const;
  int64_t generation() const { return generation_; }
  bool closed() const;

 private:
  using Registry = WorkspaceRegistry<CudaWorkspace>;

  explicit CudaWorkspace(CudaWorkspaceOptions options);
  Status OpenRanks(std::shared_ptr<const driver::Api> api);
  Status Meet(const void* site);
  bool Idle() const;

  const CudaWorkspaceOptions options_;
  const int64_t generation_;
  std::map<int, std::unique_ptr<CudaRank>> ranks_;  // by device ordinal

  mutable std::mutex mutex_;
  std::condition_variable met_;
  std::map<const void*, size_t> arrivals_;
  std::set<const void*> known_sites_;
  std::string lost_;  // what Abort was told
  bool closed_ = false;
};

}  // namespace jax_symm

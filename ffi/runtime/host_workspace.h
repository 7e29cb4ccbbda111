// A workspace on host memory, as one process sees it: its groups, its devices, its first fault.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory/memory_backend.h"
#include "runtime/completion_thread.h"
#include "runtime/host_group.h"
#include "runtime/workspace_registry.h"

namespace jax_symm {

/// A rank of this process.
struct LocalRank {
  int64_t device_ordinal = 0;  // as XLA's handlers see it
  int group = 0;
  int rank = 0;
  /// The memory of every rank of the group, by rank. May be empty where the whole group is local.
  std::vector<std::shared_ptr<Mapping>> mappings;
};

struct HostWorkspaceOptions {
  std::string name;
  std::string axis;
  int64_t nonce = 0;
  std::chrono::nanoseconds timeout{0};
  int world_size = 0;
  uint64_t capacity_bytes = 0;
  bool all_reduce = false;
  std::vector<std::vector<std::string>> rank_labels;  // by group, by rank
  std::vector<LocalRank> locals;
};

struct CallCount {
  std::string path;
  int group = 0;
  int rank = 0;
  int64_t count = 0;
};

/// Bytes of symmetric memory per rank. Depends on its arguments alone, hence equal on all ranks.
StatusOr<uint64_t> HostWorkspaceBytes(int world_size, uint64_t capacity_bytes, bool all_reduce);

class HostWorkspace : public std::enable_shared_from_this<HostWorkspace> {
 public:
  /// Starts the threads and enters the name into the registry. All ranks' memory must be zero
  /// before any rank opens.
  static StatusOr<std::shared_ptr<HostWorkspace>> Open(HostWorkspaceOptions options);

  /// The device enters a call. Never blocks. An error is the answer; on OK `call.complete` gets it,
  /// on the rank's own completion thread.
  Status Submit(int64_t device_ordinal, int64_t axis_size, int axis_index, HostCall call,
                const Scheduler& schedule);

  /// Refuses new calls, waits up to `timeout` for those in flight (then fails them), and lets the
  /// memory go. Local; idempotent.
  Status Close(std::chrono::nanoseconds timeout);
  /// Refuses new calls and leaves those in flight to themselves. For finalizers: never waits.
  static void Abandon(std::shared_ptr<HostWorkspace> workspace);

  /// The first fault, if there was one.
  Status Check() const;
  /// Fails the workspace on every rank because `rank` of `group` is lost.
  void Abort(int group, int rank, const std::string& message);

  std::vector<CallCount> Calls() const;
  int64_t generation() const { return generation_; }
  bool closed() const;

 private:
  struct Device {
    int group = 0;
    int rank = 0;
    std::unique_ptr<CompletionThread> completions;
    std::atomic<int64_t> calls{0};
  };

  explicit HostWorkspace(HostWorkspaceOptions options);

  Status StartDevices();
  Status StartGroups();
  Status StartWatchdog();
  GroupOptions MakeGroupOptions(int group);

  Status CheckCall(int64_t axis_size, const HostProblem& problem) const;
  StatusOr<Device*> FindDevice(int64_t device_ordinal, int axis_index);
  Status BeginCall();
  void EndCall();
  void OnFault(const Status& fault);
  void ExpireGroups();

  using Registry = WorkspaceRegistry<HostWorkspace>;

  HostWorkspaceOptions options_;
  const int64_t generation_;
  std::map<int64_t, Device> devices_;

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::map<int, std::shared_ptr<HostGroup>> groups_;
  int64_t calls_in_flight_ = 0;
  bool closing_ = false;
  Status fault_;
};

}  // namespace jax_symm

// The ranks that sum with each other. A group is either within one process (LocalGroup) or spread
// over several (PushGroup); a workspace holds those in which this process has ranks.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/host_call.h"

namespace jax_symm {

using Clock = std::chrono::steady_clock;

struct GroupOptions {
  std::string workspace;
  std::string axis;
  int index = 0;
  int64_t nonce = 0;
  std::chrono::nanoseconds timeout{0};
  /// "rank 3 (process 1, cpu:2051)", by rank.
  std::vector<std::string> rank_labels;
  /// Hears of the first fault, from any thread, with no lock held.
  std::function<void(const Status&)> on_fault;

  int world_size() const { return static_cast<int>(rank_labels.size()); }
  /// "workspace 'tp-0', axis 'tp', group 0"
  std::string Describe() const;
  /// The labels of `ranks`, comma separated.
  std::string Labels(const std::vector<int>& ranks) const;
};

class HostGroup {
 public:
  virtual ~HostGroup() = default;
  /// `rank` of this process enters `call`. Never blocks; `call.complete` may run before the return.
  virtual void Arrive(int rank, HostCall call, const Scheduler& schedule) = 0;
  /// Fails what is pending and all that comes, on every rank of the group. The first fault stays.
  virtual void Raise(const Status& fault) = 0;
  /// Raises a time-out if a call has been incomplete for too long.
  virtual void ExpireAt(Clock::time_point now) = 0;
};

}  // namespace jax_symm

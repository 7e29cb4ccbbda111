// Who may launch on a workspace: calls enter and leave, the local ranks of a group meet before a
// program's first launch, and once the gate is shut nobody enters.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/status.h"

namespace jax_symm {

/// Thread-safe.
class CallGate {
 public:
  using Clock = std::chrono::steady_clock;

  CallGate(std::string workspace, std::chrono::nanoseconds timeout)
      : workspace_(std::move(workspace)), timeout_(timeout) {}

  /// Enters one call of a rank of `group`; on OK, `Leave` follows. On the first run of `site`, a
  /// number that no other call site of this process has, waits until all `local_ranks` of the
  /// group have come: a device that still loads code could not make progress while another waits
  /// for it. A rank that does not come in time fails the gate.
  Status Enter(int64_t site, int group, size_t local_ranks);
  void Leave();

  /// Refuses calls from now on because of `fault`, of those who wait too. The first fault stays.
  void Fail(const Status& fault);
  /// Refuses calls from now on, of those who wait too. False if it was closed before.
  bool Close();
  /// Waits until no call is inside. False past the deadline.
  bool Drain(Clock::time_point deadline);

  Status fault() const;
  bool closed() const;

 private:
  using Meeting = std::pair<int64_t, int>;  // site and group

  Status Refusal() const;  // with the lock held, as the next
  Status Meet(std::unique_lock<std::mutex>& lock, const Meeting& meeting, size_t local_ranks);

  const std::string workspace_;
  const std::chrono::nanoseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Meeting, size_t> arrivals_;
  std::set<Meeting> met_;
  int64_t inside_ = 0;
  bool closed_ = false;
  Status fault_;
};

}  // namespace jax_symm

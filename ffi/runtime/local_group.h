// A group whose ranks are all in this process: the last to arrive sums.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/host_group.h"

namespace jax_symm {

class LocalGroup final : public HostGroup {
 public:
  explicit LocalGroup(GroupOptions options);

  void Arrive(int rank, HostCall call, const Scheduler& schedule) override;
  void Raise(const Status& fault) override;
  void ExpireAt(Clock::time_point now) override;

 private:
  /// A call at which some ranks have arrived. Entries without `complete` are missing ranks.
  struct Pending {
    std::vector<HostCall> calls;
    int arrived = 0;
    Clock::time_point deadline;
  };

  /// Call site and launch: in one process that is unique without any counting.
  using Key = std::pair<int64_t, int64_t>;

  Status TimeoutStatus(const Pending& pending) const;
  /// Where `ranks` are instead, if anywhere. With the lock held.
  std::string OtherCalls(const std::vector<int>& ranks) const;

  const GroupOptions options_;
  std::mutex mutex_;
  std::map<Key, Pending> pending_;
  Status fault_;
};

}  // namespace jax_symm

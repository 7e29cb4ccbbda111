// A group with ranks in several processes: the push protocol on symmetric host memory.
#pragma once

#include <map>
#include <memory>

#include "runtime/host_group.h"
#include "runtime/push_rank.h"

namespace jax_symm {

class PushGroup final : public HostGroup {
 public:
  /// `locals`: the ranks of this process, at least one, not started yet.
  static StatusOr<std::shared_ptr<HostGroup>> Start(
      std::map<int, std::shared_ptr<PushRank>> locals);
  ~PushGroup() override;

  void Arrive(int rank, HostCall call, const Scheduler& schedule) override;
  void Raise(const Status& fault) override;
  /// The progress threads watch the time themselves.
  void ExpireAt(Clock::time_point now) override;

 private:
  explicit PushGroup(std::map<int, std::shared_ptr<PushRank>> locals);
  const std::map<int, std::shared_ptr<PushRank>> locals_;
};

}  // namespace jax_symm

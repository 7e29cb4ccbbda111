#include "runtime/local_group.h"

#include <memory>
#include <utility>

#include "runtime/local_reduction.h"

namespace jax_symm {

LocalGroup::LocalGroup(GroupOptions options) : options_(std::move(options)) {}

void LocalGroup::Arrive(int rank, HostCall call, const Scheduler& schedule) {
  std::vector<HostCall> complete_set;
  Status fault;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fault = fault_;
    if (fault.ok()) {
      const Key key = {call.site, call.key.run_id};
      Pending& pending = pending_[key];
      if (pending.arrived == 0) {
        pending.calls.resize(options_.world_size());
        pending.deadline = Clock::now() + options_.timeout;
      }
      pending.calls[rank] = std::move(call);
      if (++pending.arrived < options_.world_size()) return;
      complete_set = std::move(pending.calls);
      pending_.erase(key);
    }
  }
  if (!fault.ok()) return call.complete(fault);
  std::make_shared<LocalReduction>(std::move(complete_set))->Run(schedule);
}

void LocalGroup::Raise(const Status& fault) {
  std::map<Key, Pending> failed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!fault_.ok()) return;
    fault_ = fault;
    failed.swap(pending_);
  }
  for (const auto& [key, pending] : failed) {
    for (const HostCall& call : pending.calls) {
      if (call.complete) call.complete(fault);
    }
  }
}

void LocalGroup::ExpireAt(Clock::time_point now) {
  Status fault;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, pending] : pending_) {
      if (pending.deadline > now) continue;
      fault = TimeoutStatus(pending);
      break;
    }
  }
  if (!fault.ok()) options_.on_fault(fault);
}

Status LocalGroup::TimeoutStatus(const Pending& pending) const {
  std::vector<int> missing;
  const HostCall* first = nullptr;
  for (int rank = 0; rank < options_.world_size(); ++rank) {
    const HostCall& call = pending.calls[rank];
    if (!call.complete) {
      missing.push_back(rank);
    } else if (first == nullptr) {
      first = &call;
    }
  }
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  return DeadlineExceeded(
      Describe(first->key, first->problem), " on ", options_.Describe(), ": after ", seconds,
      " s only ", pending.arrived, " of ", options_.world_size(),
      " ranks have arrived; missing: ", options_.Labels(missing), OtherCalls(missing),
      ". Every rank of the group must run the same calls; close the workspace and open another, "
      "or raise timeout_s if a rank is only slow");
}

std::string LocalGroup::OtherCalls(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) {
    for (const auto& [key, pending] : pending_) {
      const HostCall& call = pending.calls[rank];
      if (!call.complete) continue;
      text +=
          StrCat("; ", options_.rank_labels[rank], " waits in ", Describe(call.key, call.problem));
      break;
    }
  }
  return text;
}

}  // namespace jax_symm

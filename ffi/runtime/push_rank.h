// A local rank of a group of several processes. Its progress thread follows the order that rank 0
// announces: call sites may become ready in another order here, and one set of slots serves all.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "memory/memory_backend.h"
#include "runtime/host_group.h"
#include "runtime/push_memory.h"

namespace jax_symm {

class PushRank : public std::enable_shared_from_this<PushRank> {
 public:
  /// `mappings`: the memory of every rank, by rank. They live as long as the progress thread.
  PushRank(GroupOptions options, const PushLayout& layout, int rank,
           std::vector<std::shared_ptr<Mapping>> mappings);

  Status Start();
  void Arrive(HostCall call);
  /// Records `fault` for the group, if it is the first, and wakes every rank.
  void Raise(const Status& fault);
  /// Ends the progress thread; nothing may be pending.
  void Stop();

 private:
  struct Arrival {
    HostCall call;
    Clock::time_point time;
  };
  using Ready = std::function<bool()>;
  using Text = std::function<std::string()>;

  void Progress();
  Status RunNext(uint64_t epoch);
  StatusOr<HostCall> Announce(uint64_t epoch);
  StatusOr<HostCall> Follow(uint64_t epoch);
  Status AwaitAnnouncement(uint64_t epoch);
  Status CheckIdentity(const HostCall& mine) const;
  Status Wait(Clock::time_point deadline, const Ready& ready, const Text& timeout_text);
  Status TimeoutStatus(const std::string& text) const;
  void Fail(const Status& fault);

  // The progress thread alone takes arrivals, so one that it has seen is still there.
  HostCall TakeFirst();
  HostCall Take(const CallKey& key);
  std::optional<Arrival> Oldest();
  bool HasArrival();
  bool HasArrival(const CallKey& key);
  std::deque<Arrival>::iterator Find(const CallKey& key);  // with the lock held

  PushPad& pad() const { return ranks_[rank_].pad(); }

  const GroupOptions options_;
  const int rank_;
  const std::vector<std::shared_ptr<Mapping>> mappings_;
  std::vector<PushMemory> ranks_;

  std::mutex mutex_;
  std::deque<Arrival> arrivals_;
  Status fault_;
  std::atomic<bool> stopped_{false};
};

}  // namespace jax_symm

#include "runtime/push_rank.h"

#include <algorithm>
#include <utility>

#include "runtime/push_exchange.h"
#include "runtime/thread.h"

namespace jax_symm {
namespace {

/// JAX numbers the launches of each compiled program, in each process by itself.
std::string LaunchHint(const CallKey& announced, const CallKey& mine) {
  CallKey same_launch = mine;
  same_launch.run_id = announced.run_id;
  if (same_launch != announced) return "";
  return ": the same call of another launch. A process that compiles a program again, as after "
         "jax.clear_caches(), counts its launches from the start, so all must do that together";
}

}  // namespace

PushRank::PushRank(GroupOptions options, const PushLayout& layout, int rank,
                   std::vector<std::shared_ptr<Mapping>> mappings)
    : options_(std::move(options)), rank_(rank), mappings_(std::move(mappings)) {
  for (const auto& mapping : mappings_) ranks_.emplace_back(layout, mapping->address().value);
}

Status PushRank::Start() {
  return StartThread(StrCat("symm-push-", rank_),
                     [self = shared_from_this()] { self->Progress(); });
}

void PushRank::Arrive(HostCall call) {
  Status fault;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fault = fault_;
    if (fault.ok()) arrivals_.push_back({std::move(call), Clock::now()});
  }
  if (!fault.ok()) return call.complete(fault);
  pad().bell.Ring();
}

void PushRank::Raise(const Status& fault) {
  ranks_[0].pad().fault.Write(fault);
  for (const PushMemory& peer : ranks_) {
    peer.pad().faulted.store(1, std::memory_order_release);
    peer.pad().bell.Ring();
  }
}

void PushRank::Stop() {
  stopped_.store(true);
  pad().bell.Ring();
}

void PushRank::Progress() {
  Status status;
  for (uint64_t epoch = 1; status.ok() && !stopped_.load(); ++epoch) status = RunNext(epoch);
  if (stopped_.load()) return;
  Raise(status);
  Fail(ranks_[0].pad().fault.Read());
}

Status PushRank::RunNext(uint64_t epoch) {
  JAX_SYMM_ASSIGN_OR_RETURN(const HostCall call, rank_ == 0 ? Announce(epoch) : Follow(epoch));
  Status status = CheckIdentity(call);
  if (status.ok()) {
    PushExchange exchange(options_, ranks_, rank_, [this](const Ready& ready, const Text& text) {
      return Wait(Clock::now() + options_.timeout, ready, text);
    });
    status = exchange.Run(epoch, call);
  }
  if (status.ok()) {
    call.complete(status);
    return status;
  }
  // Every rank reports the recorded fault, not what it happened to see; the workspace first, so
  // that it knows when somebody sees the call fail.
  Raise(status);
  const Status fault = ranks_[0].pad().fault.Read();
  options_.on_fault(fault);
  call.complete(fault);
  return status;
}

StatusOr<HostCall> PushRank::Announce(uint64_t epoch) {
  JAX_SYMM_RETURN_IF_ERROR(
      Wait(Clock::time_point::max(), [this] { return HasArrival(); }, nullptr));
  HostCall call = TakeFirst();
  for (const PushMemory& peer : ranks_) {
    Announcement& announcement = peer.pad().announcement;
    announcement.key = call.key;
    announcement.problem = call.problem;
    announcement.epoch.store(epoch, std::memory_order_release);
    peer.pad().bell.Ring();
  }
  return call;
}

StatusOr<HostCall> PushRank::Follow(uint64_t epoch) {
  JAX_SYMM_RETURN_IF_ERROR(AwaitAnnouncement(epoch));
  const Announcement& announced = pad().announcement;
  const auto begin = Clock::now();
  // Taken only after the wait: a fault that comes meanwhile fails all that has not been taken.
  const auto arrived = [&] { return HasArrival(announced.key); };
  std::optional<Arrival> other;
  const auto text = [&] {
    return StrCat(options_.rank_labels[0], " made call ",
                  Describe(announced.key, announced.problem), " on ", options_.Describe(), ", but ",
                  options_.rank_labels[rank_], " did not; it ",
                  other ? "waits in " + Describe(other->call.key, other->call.problem) +
                              LaunchHint(announced.key, other->call.key)
                        : std::string("makes no call"));
  };
  // A rank that waits in another call knows more than its peers, so it speaks before they do.
  Status status = Wait(begin + options_.timeout * 9 / 10, arrived, text);
  if (status.code() == StatusCode::kDeadlineExceeded) {
    other = Oldest();
    status = Wait(other ? begin : begin + options_.timeout, arrived, text);
  }
  JAX_SYMM_RETURN_IF_ERROR(status);
  return Take(announced.key);
}

// A call that waits here and is never announced was skipped by rank 0.
Status PushRank::AwaitAnnouncement(uint64_t epoch) {
  auto announced = [&] {
    return pad().announcement.epoch.load(std::memory_order_acquire) >= epoch;
  };
  const Clock::time_point idle_since = Clock::now();
  for (;;) {
    const std::optional<Arrival> oldest = Oldest();
    if (!oldest) {
      JAX_SYMM_RETURN_IF_ERROR(
          Wait(Clock::time_point::max(), [&] { return announced() || HasArrival(); }, nullptr));
      if (announced()) return OkStatus();
      continue;
    }
    return Wait(std::max(oldest->time, idle_since) + options_.timeout, announced, [&] {
      return StrCat(options_.rank_labels[rank_], " made call ",
                    Describe(oldest->call.key, oldest->call.problem), " on ", options_.Describe(),
                    ", but ", options_.rank_labels[0], " did not");
    });
  }
}

Status PushRank::CheckIdentity(const HostCall& mine) const {
  const Announcement& announced = pad().announcement;
  if (mine.problem == announced.problem) return OkStatus();
  return InvalidArgument("the ranks of ", options_.Describe(),
                         " made different calls: ", options_.rank_labels[0], " ",
                         Describe(announced.key, announced.problem), ", ",
                         options_.rank_labels[rank_], " ", Describe(mine.key, mine.problem),
                         ". Every rank must run the same program with the same shapes");
}

Status PushRank::Wait(Clock::time_point deadline, const Ready& ready, const Text& timeout_text) {
  auto interrupted = [this] {
    return pad().faulted.load(std::memory_order_acquire) != 0 || stopped_.load();
  };
  const bool in_time = pad().bell.WaitUntil(deadline, [&] { return interrupted() || ready(); });
  if (interrupted()) {
    if (stopped_.load()) return MakeStatus(StatusCode::kAborted, "stopped");
    return ranks_[0].pad().fault.Read();
  }
  return in_time ? OkStatus() : TimeoutStatus(timeout_text());
}

Status PushRank::TimeoutStatus(const std::string& text) const {
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  return DeadlineExceeded(text, ". Waited ", seconds,
                          " s. Every rank of the group must run the same calls; close the "
                          "workspace and open another, or raise timeout_s if a rank is only slow");
}

void PushRank::Fail(const Status& fault) {
  options_.on_fault(fault);
  std::deque<Arrival> failed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fault_ = fault;
    failed.swap(arrivals_);
  }
  for (const Arrival& arrival : failed) arrival.call.complete(fault);
}

HostCall PushRank::TakeFirst() {
  std::lock_guard<std::mutex> lock(mutex_);
  HostCall call = std::move(arrivals_.front().call);
  arrivals_.pop_front();
  return call;
}

HostCall PushRank::Take(const CallKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = Find(key);
  HostCall call = std::move(found->call);
  arrivals_.erase(found);
  return call;
}

std::optional<PushRank::Arrival> PushRank::Oldest() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (arrivals_.empty()) return std::nullopt;
  return arrivals_.front();
}

bool PushRank::HasArrival() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !arrivals_.empty();
}

bool PushRank::HasArrival(const CallKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return Find(key) != arrivals_.end();
}

std::deque<PushRank::Arrival>::iterator PushRank::Find(const CallKey& key) {
  return std::find_if(arrivals_.begin(), arrivals_.end(),
                      [&](const Arrival& arrival) { return arrival.call.key == key; });
}

}  // namespace jax_symm

#include "dispatch/call_gate.h"

namespace jax_symm {

Status CallGate::Enter(int64_t site, int group, size_t local_ranks) {
  std::unique_lock<std::mutex> lock(mutex_);
  JAX_SYMM_RETURN_IF_ERROR(Refusal());
  JAX_SYMM_RETURN_IF_ERROR(Meet(lock, {site, group}, local_ranks));
  ++inside_;
  return OkStatus();
}

void CallGate::Leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--inside_ == 0) changed_.notify_all();
}

Status CallGate::Refusal() const {
  if (!fault_.ok()) return fault_;
  if (closed_) return FailedPrecondition("workspace '", workspace_, "' is closed");
  return OkStatus();
}

Status CallGate::Meet(std::unique_lock<std::mutex>& lock, const Meeting& meeting,
                      size_t local_ranks) {
  if (local_ranks == 1 || met_.contains(meeting)) return OkStatus();
  if (++arrivals_[meeting] == local_ranks) {
    met_.insert(meeting);
    arrivals_.erase(meeting);
    changed_.notify_all();
    return OkStatus();
  }
  const bool in_time =
      changed_.wait_for(lock, timeout_, [&] { return met_.contains(meeting) || !Refusal().ok(); });
  JAX_SYMM_RETURN_IF_ERROR(Refusal());
  if (in_time) return OkStatus();
  fault_ = DeadlineExceeded(
      "workspace '", workspace_, "': only ", arrivals_[meeting], " of the ", local_ranks,
      " ranks that group ", meeting.second, " has in this process began a program's first run ",
      "within ", std::chrono::duration<double>(timeout_).count(),
      " s; the others failed before it or run another program. Close the workspace and open "
      "another, or raise timeout_s if a rank is only slow");
  changed_.notify_all();
  return fault_;
}

void CallGate::Fail(const Status& fault) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (fault_.ok()) fault_ = fault;
  changed_.notify_all();
}

bool CallGate::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
  return !std::exchange(closed_, true);
}

bool CallGate::Drain(Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return inside_ == 0; });
}

Status CallGate::fault() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

bool CallGate::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

}  // namespace jax_symm

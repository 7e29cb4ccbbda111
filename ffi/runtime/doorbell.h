// Waiting for stores that other processes make to shared memory: every store that a rank may wait
// for is followed by a ring of that rank's bell.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace jax_symm {

/// Lives in shared memory; all zeros is the initial state. One rank waits, anyone rings.
class Doorbell {
 public:
  /// Wakes the waiter, if there is one. Call after the store it waits for.
  /// @par Ordering Everything stored before the ring is visible to a waiter that sees it.
  void Ring();

  /// Returns when `ready()` is true, or false once `deadline` has passed.
  template <typename Ready>
  bool WaitUntil(std::chrono::steady_clock::time_point deadline, Ready ready) {
    if (ready()) return true;
    // Announced before the count is read: a ring that misses the announcement comes before that
    // read, so the count already includes it. Sequentially consistent for this argument.
    waiters_.fetch_add(1);
    bool done = false;
    for (;;) {
      const uint32_t seen = rings_.load();
      done = ready();
      if (done || !Sleep(seen, deadline)) break;
    }
    waiters_.fetch_sub(1);
    return done || ready();
  }

 private:
  /// Sleeps until the count is no longer `seen`; false once `deadline` has passed.
  bool Sleep(uint32_t seen, std::chrono::steady_clock::time_point deadline);

  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> waiters_;
};

static_assert(sizeof(Doorbell) == 8 && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace jax_symm

#include "runtime/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace jax_symm {
namespace {

/// Not FUTEX_PRIVATE: the word is shared between processes at different addresses.
long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

void Doorbell::Ring() {
  rings_.fetch_add(1);
  if (waiters_.load() != 0) Futex(rings_, FUTEX_WAKE, INT_MAX, nullptr);
}

bool Doorbell::Sleep(uint32_t seen, std::chrono::steady_clock::time_point deadline) {
  if (deadline == std::chrono::steady_clock::time_point::max()) {
    Futex(rings_, FUTEX_WAIT_BITSET, seen, nullptr);
    return true;
  }
  if (std::chrono::steady_clock::now() >= deadline) return false;
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is steady_clock.
  const auto since_epoch =
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
  const timespec until = {static_cast<time_t>(since_epoch / 1000000000),
                          static_cast<long>(since_epoch % 1000000000)};
  Futex(rings_, FUTEX_WAIT_BITSET, seen, &until);
  return true;
}

}  // namespace jax_symm

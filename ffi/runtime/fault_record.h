// The fault that a group of several processes died of, in the shared memory of its rank 0: the
// first writer wins, and every rank reports the same text. The memory outlives its creator for as
// long as anyone maps it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace jax_symm {

/// Lives in shared memory; all zeros is the initial state.
class FaultRecord {
 public:
  /// Records `fault` unless there is one already.
  void Write(const Status& fault);
  /// The recorded fault. Waits, for at most a second, while it is being written.
  Status Read() const;

 private:
  enum State : uint32_t { kEmpty = 0, kWriting = 1, kWritten = 2 };
  static constexpr uint32_t kTextBytes = 4000;

  std::atomic<uint32_t> state_;
  uint32_t code_;
  uint32_t text_bytes_;
  char text_[kTextBytes];
};

}  // namespace jax_symm

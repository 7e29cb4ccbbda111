// The symmetric memory of one rank on the host: a signal pad, one slot per source, and for
// all-reduce the gathered result. The single place that knows an offset.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "runtime/doorbell.h"
#include "runtime/fault_record.h"
#include "runtime/host_call.h"

namespace jax_symm {

/// Stored by one peer, awaited by the owner of the pad; on a cache line of its own.
struct alignas(64) SignalWord {
  std::atomic<uint64_t> value;
};

/// Which call has an epoch, by rank 0. The fields are plain: rank 0 stores them before it releases
/// `epoch`, and again only when every rank has contributed to that epoch, hence has read them.
struct Announcement {
  std::atomic<uint64_t> epoch;
  CallKey key;
  HostProblem problem;
};

struct PushPad {
  alignas(64) Doorbell bell;
  std::atomic<uint32_t> faulted;
  alignas(64) Announcement announcement;
  FaultRecord fault;  // of the group; used in the pad of rank 0 alone
};

/// Sizes and offsets of a rank's memory, all from the capacity of the workspace.
class PushLayout {
 public:
  static StatusOr<PushLayout> Make(int world_size, uint64_t capacity_bytes, bool all_reduce);

  int world_size() const { return world_size_; }
  uint64_t nbytes() const { return nbytes_; }

 private:
  friend class PushMemory;
  int world_size_ = 0;
  uint64_t slots_offset_ = 0;
  uint64_t slot_bytes_ = 0;
  uint64_t result_offset_ = 0;
  uint64_t nbytes_ = 0;
};

/// One rank's memory as mapped here. All signal words hold epoch << 24 | digest of the call, or for
/// `done` the epoch alone; they only grow.
class PushMemory {
 public:
  PushMemory(const PushLayout& layout, uint64_t address) : layout_(layout), address_(address) {}

  PushPad& pad() const { return *reinterpret_cast<PushPad*>(address_); }
  /// Peer `rank` has read everything of the epoch.
  SignalWord& done(int rank) const { return Word(0, rank); }
  /// Source `rank` has filled its slot.
  SignalWord& slot_flag(int rank) const { return Word(1, rank); }
  /// Owner `rank` has stored its rows of the result.
  SignalWord& result_flag(int rank) const { return Word(2, rank); }
  char* slot(int rank) const {
    return reinterpret_cast<char*>(address_ + layout_.slots_offset_ + rank * layout_.slot_bytes_);
  }
  char* result() const { return reinterpret_cast<char*>(address_ + layout_.result_offset_); }

 private:
  SignalWord& Word(int row, int rank) const {
    auto* words = reinterpret_cast<SignalWord*>(address_ + sizeof(PushPad));
    return words[row * layout_.world_size_ + rank];
  }

  PushLayout layout_;
  uint64_t address_;
};

}  // namespace jax_symm

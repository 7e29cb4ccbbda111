// One rank's part in one call of a group of several processes: push the rows of every owner into
// that owner's slot, sum the own slots, and for all-reduce push the sum to everyone.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/host_group.h"
#include "runtime/push_memory.h"

namespace jax_symm {

class PushExchange {
 public:
  /// Waits on this rank's bell until the condition holds. OK, or why it never will.
  using Wait = std::function<Status(const std::function<bool()>& ready,
                                    const std::function<std::string()>& timeout_text)>;

  /// `ranks`: the memory of every rank, as mapped by this process.
  PushExchange(const GroupOptions& options, const std::vector<PushMemory>& ranks, int rank,
               Wait wait)
      : options_(options), ranks_(ranks), rank_(rank), wait_(std::move(wait)) {}

  /// Runs `call` as the group's call number `epoch`. On return this rank has read all that it will
  /// read of the epoch, and has said so.
  /// @par Ordering Slots and results are released by the flag of their writer (system scope: plain
  /// C++ release stores) and acquired by their reader; `done` is released after the last read and
  /// acquired before the first store of the next epoch.
  Status Run(uint64_t epoch, const HostCall& call);

 private:
  Status AwaitPeersDone(uint64_t epoch, const HostCall& call) const;
  void PushRows(const HostCall& call, uint64_t flag) const;
  Status AwaitFlags(const HostCall& call, uint64_t flag, SignalWord& (PushMemory::*word)(int) const,
                    const char* what) const;
  void SumSlots(const HostCall& call) const;
  void PushResultFlags(uint64_t flag) const;
  void CopyResult(const HostCall& call) const;
  void SignalDone(uint64_t epoch) const;

  int world_size() const { return static_cast<int>(ranks_.size()); }

  const GroupOptions& options_;
  const std::vector<PushMemory>& ranks_;
  const int rank_;
  const Wait wait_;
};

}  // namespace jax_symm

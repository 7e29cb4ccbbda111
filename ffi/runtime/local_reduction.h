// One complete call of a group within one process: the sum straight from the operand buffers to
// the result buffers, shared by whichever threads come.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/host_call.h"

namespace jax_symm {

class LocalReduction : public std::enable_shared_from_this<LocalReduction> {
 public:
  /// `calls` by rank.
  explicit LocalReduction(std::vector<HostCall> calls);

  /// Works on the calling thread and on such workers as `schedule` provides, and returns when there
  /// is nothing left to claim. It waits for no worker: whoever finishes the last piece completes
  /// the calls.
  void Run(const Scheduler& schedule);

 private:
  void Work();
  void SumPiece(int64_t piece);
  void SumSegment(int64_t segment, int64_t begin, int64_t end);
  void Complete();

  const std::vector<HostCall> calls_;
  const HostProblem problem_;
  std::vector<const void*> partials_;
  std::vector<void*> results_;
  int64_t segment_elements_;
  int64_t total_elements_;
  int64_t num_pieces_;
  bool stream_;
  std::atomic<int64_t> next_piece_{0};
  std::atomic<int64_t> finished_pieces_{0};
};

}  // namespace jax_symm

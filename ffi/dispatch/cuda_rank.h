// One rank of a workspace on a GPU of this process: what its launches need and leave behind.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "dispatch/kernel_library.h"
#include "dispatch/launch.h"
#include "memory/memory_backend.h"
#include "memory/primary_context.h"

namespace jax_symm {

struct CudaRankOptions {
  std::string workspace;  // its name, for messages
  int device_ordinal = 0;
  int group = 0;
  uint32_t rank = 0;
  std::vector<std::string> labels;                 // of the group's ranks
  std::vector<std::shared_ptr<Mapping>> mappings;  // of every rank's memory, by rank
  /// Of this memory in all ranks; zero without an agreement. The owner keeps it mapped until
  /// closed.
  MulticastAddress multicast = {};
  WorkspaceCapacity capacity;
  std::chrono::nanoseconds timeout{0};
  uint32_t sm_margin = 0;  // multiprocessors left to others, the same on every rank
};

/// A call as the handler has it. `call` is HashCall, which every rank must have alike.
struct CudaCall {
  GemmProblem problem;
  std::optional<Reducer> reducer;  // none: by what the ranks agreed on
  CallBuffers buffers = {};
  uint32_t call = 0;
};

class CudaRank {
 public:
  static StatusOr<std::unique_ptr<CudaRank>> Open(std::shared_ptr<KernelLibrary> library,
                                                  std::shared_ptr<const driver::Api> api,
                                                  CudaRankOptions options);
  ~CudaRank();
  CudaRank(const CudaRank&) = delete;
  CudaRank& operator=(const CudaRank&) = delete;

  /// Enqueues one launch after this rank's previous one, on whichever streams the two are: the
  /// epochs of a workspace are one sequence. Refuses once there is a fault.
  Status Launch(const CudaCall& call, driver::Stream stream);

  /// The fault that ended a launch here, if one did.
  Status Fault() const;
  /// Makes running launches end because `lost_rank` will not come.
  void Abort(uint32_t lost_rank);
  /// Whether the last launch has ended; an error of the device ends it too.
  bool Idle() const;
  /// Drops the memory of the ranks. The rank is idle, and there are no more launches.
  void ReleaseMemory();

  int group() const { return options_.group; }
  int rank() const { return static_cast<int>(options_.rank); }
  int64_t calls(Reducer reducer) const {
    return calls_[static_cast<int>(reducer)].load(std::memory_order_relaxed);
  }

 private:
  /// In pinned memory, which the GPU writes and reads over the bus.
  struct Pinned {
    alignas(64) uint32_t abort_word;
    alignas(64) LaunchRecord record;
  };

  CudaRank(std::shared_ptr<KernelLibrary> library, std::shared_ptr<const driver::Api> api,
           CudaRankOptions options)
      : library_(std::move(library)), api_(std::move(api)), options_(std::move(options)) {}
  Status Prepare();
  std::string Label(uint32_t rank) const;

  std::shared_ptr<KernelLibrary> library_;
  std::shared_ptr<const driver::Api> api_;
  CudaRankOptions options_;
  std::unique_ptr<PrimaryContext> context_;
  uint32_t max_ctas_ = 0;
  Pinned* pinned_ = nullptr;
  RankMemory memory_;
  driver::Event last_launch_ = nullptr;

  std::mutex mutex_;
  std::atomic<bool> launched_{false};
  std::atomic<int64_t> calls_[3] = {};
};

}  // namespace jax_symm

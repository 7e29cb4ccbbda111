// One rank's arrival at one collective, as the groups see it: free of XLA's types.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "runtime/element_type.h"

namespace jax_symm {

enum class CollectiveOp : uint8_t { kReduceScatter = 0, kAllReduce = 1 };

/// Row i of the flattened batch * rows rows belongs to owner (i mod rows) / shard_rows. Equal on
/// every rank of a call.
struct HostProblem {
  CollectiveOp op = CollectiveOp::kReduceScatter;
  ElementType in = ElementType::kBf16;
  ElementType out = ElementType::kBf16;
  int64_t batch = 0;
  int64_t rows = 0;
  int64_t shard_rows = 0;
  int64_t n = 0;
  int64_t k = 0;

  bool operator==(const HostProblem&) const = default;

  /// Elements of one owner's rows in one batch entry, padding included.
  int64_t shard_elements() const { return shard_rows * n; }
  /// Elements of one batch entry of the partial.
  int64_t entry_elements() const { return rows * n; }
  /// Of those, how many `owner` has: less than shard_elements() where rows run out.
  int64_t owned_elements(int owner) const;
};

std::string Describe(const HostProblem& problem);

/// Which call of which launch: the same on every rank. `instance` tells the call sites of an
/// executable that share a tag apart, by the order of their instantiation.
struct CallKey {
  int64_t run_id = 0;
  int64_t call_site = 0;
  int64_t instance = 0;

  auto operator<=>(const CallKey&) const = default;
};

std::string Describe(const CallKey& key, const HostProblem& problem);

/// A 24-bit digest of everything that ranks must agree on in one call.
uint32_t CallDigest(int64_t nonce, const CallKey& key, const HostProblem& problem);

using Completion = std::function<void(const Status&)>;
/// Runs a task on a worker of XLA's thread pool; valid while the handler that got it runs.
using Scheduler = std::function<void(std::function<void()> task)>;

struct HostCall {
  int64_t site = 0;  // the call site, as this process numbers it
  CallKey key;
  HostProblem problem;
  const void* partial = nullptr;
  void* result = nullptr;
  /// Called once, from any thread, with no lock held; the buffers are not touched afterwards.
  Completion complete;
};

}  // namespace jax_symm

// Completing a promise runs the rest of that device's XLA program on the completing thread, and the
// program may block in a collective until the other ranks' promises are completed too. So each rank
// has a thread of its own for this, and nothing else runs there.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace jax_symm {

class CompletionThread {
 public:
  static StatusOr<std::unique_ptr<CompletionThread>> Start(const std::string& name);
  /// Lets the thread finish what was posted; does not wait for it.
  ~CompletionThread();

  void Post(std::function<void()> completion);

 private:
  struct Queue;
  explicit CompletionThread(std::shared_ptr<Queue> queue);
  const std::shared_ptr<Queue> queue_;
};

}  // namespace jax_symm

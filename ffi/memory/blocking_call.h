// Driver calls that may never return, on a helper thread and under a deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "base/status.h"
#include "memory/ledger.h"

namespace jax_symm {

/// Runs `call` on a thread of its own. Past the deadline the answer is DEADLINE_EXCEEDED and the
/// call is given up: the objects that it uses, and its result should it ever have one, are kept
/// until the process ends.
template <typename T>
StatusOr<T> RunBlocking(const std::string& what, std::chrono::nanoseconds deadline,
                        std::function<StatusOr<T>()> call) {
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    std::function<StatusOr<T>()> call;
    std::optional<StatusOr<T>> result;
  };
  auto state = std::make_shared<State>();
  state->call = std::move(call);
  std::thread helper;
  try {
    helper = std::thread([state] {
      StatusOr<T> result = state->call();
      std::lock_guard lock(state->mutex);
      state->result = std::move(result);
      state->done.notify_one();
    });
  } catch (const std::system_error& error) {
    return ResourceExhausted("cannot start a thread for ", what, ": ", error.what());
  }
  std::unique_lock lock(state->mutex);
  if (state->done.wait_for(lock, deadline, [&] { return state->result.has_value(); })) {
    lock.unlock();
    helper.join();
    return *std::move(state->result);
  }
  lock.unlock();
  helper.detach();
  Quarantine(StrCat(what, " did not return"), {state});
  return DeadlineExceeded(what, " did not return within ",
                          std::chrono::duration<double>(deadline).count(), " s");
}

}  // namespace jax_symm

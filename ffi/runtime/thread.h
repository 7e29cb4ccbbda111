// Threads of ours that no one joins: each owns what it needs, so closing a workspace waits for no
// thread that XLA may be holding, and a forked child has nothing to wait for.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace jax_symm {

/// Runs `body` on a new detached thread with all signals blocked (they are the main thread's) and a
/// stack large enough for XLA programs. `name` is cut to 15 characters.
Status StartThread(const std::string& name, std::function<void()> body);

}  // namespace jax_symm

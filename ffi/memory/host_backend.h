// Symmetric memory for CPU devices: an anonymous file (memfd) per allocation, mapped shared. A peer
// process maps the same pages from a descriptor; nothing has a name, so nothing outlives the last
// process that holds it, however that process ends.
#pragma once

#include <memory>

#include "memory/memory_backend.h"

namespace jax_symm {

/// Pages are committed on first touch, so a reserved but unused slot costs nothing.
std::shared_ptr<MemoryBackend> MakeHostBackend();

}  // namespace jax_symm

// The two kinds of address under which symmetric memory is seen.
#pragma once

#include <cstdint>

namespace jax_symm {

/// An address at which one rank's memory is visible to ordinary loads and stores.
struct UnicastAddress {
  uint64_t value = 0;
};
/// An address that only multimem instructions may touch. A different type, so that neither can be
/// passed for the other.
struct MulticastAddress {
  uint64_t value = 0;
};

}  // namespace jax_symm

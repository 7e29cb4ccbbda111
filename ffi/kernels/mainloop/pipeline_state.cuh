// Position in a ring of mbarriers: slot and the parity of its current round.
#pragma once

#include <cstdint>

namespace jax_symm {

template <int kSlots>
struct PipelineState {
  uint32_t slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace jax_symm

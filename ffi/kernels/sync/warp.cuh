// The lanes of a converged warp.
#pragma once

#include <cstdint>

namespace jax_symm {

inline constexpr uint32_t kFullWarp = 0xffffffffu;

__device__ __forceinline__ uint32_t Lane() { return threadIdx.x % 32; }

/// The lowest lane of a mask that is not empty.
__device__ __forceinline__ uint32_t LowestLane(uint32_t mask) { return __clz(__brev(mask)); }

}  // namespace jax_symm

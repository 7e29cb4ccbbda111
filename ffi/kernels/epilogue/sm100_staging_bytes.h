// Sizes of the staging buffer of SM100, for kernels and for dispatch.
#pragma once

namespace jax_symm {

/// Columns that an epilogue warp takes out of tensor memory at once: 128 bytes of each row.
inline constexpr int kChunkColumns = 64;
inline constexpr int kChunkBytes = kChunkColumns * 2;
/// A warp holds a row a lane.
inline constexpr int kWarpStagingBytes = 32 * kChunkBytes;
inline constexpr int kSm100StagingBytes = 4 * kWarpStagingBytes;

}  // namespace jax_symm

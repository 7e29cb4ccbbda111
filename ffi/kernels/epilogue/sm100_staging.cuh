// Transposes a chunk of one epilogue warp through shared memory: from one row a lane to four
// lanes a row. One warp writes and reads its own part, so a __syncwarp orders the two.
#pragma once

#include <cstdint>

#include "kernels/epilogue/sm100_accumulator.cuh"
#include "kernels/epilogue/sm100_staging_bytes.h"

namespace jax_symm {

inline constexpr int kLanesPerRow = 4;
inline constexpr int kRowsPerLane = 32 / (32 / kLanesPerRow);

/// The i-th of this lane's rows of the warp, after the transposition.
__device__ __forceinline__ int StagedRow(int i) {
  return i * (32 / kLanesPerRow) + threadIdx.x % 32 / kLanesPerRow;
}

/// A row is eight units of 16 bytes. Unit u lies at u ^ row % 8, so that the eight lanes that
/// access shared memory together, rows apart when writing and units apart when reading, touch
/// different banks.
__device__ __forceinline__ uint4* StagedUnit(uint8_t* staging, int row, int unit) {
  return reinterpret_cast<uint4*>(staging + row * kChunkBytes) + (unit ^ row % 8);
}

/// Writes this lane's row.
__device__ __forceinline__ void StageRow(uint8_t* staging, const uint32_t (&words)[kChunkWords]) {
#pragma unroll
  for (int unit = 0; unit < kChunkBytes / 16; ++unit) {
    const uint32_t* w = words + 4 * unit;
    *StagedUnit(staging, threadIdx.x % 32, unit) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

/// Reads this lane's 32 bytes of its i-th row.
__device__ __forceinline__ void ReadStaged(uint8_t* staging, int i, uint32_t (&words)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int unit = threadIdx.x % kLanesPerRow * 2 + half;
    const uint4 v = *StagedUnit(staging, StagedRow(i), unit);
    words[4 * half] = v.x;
    words[4 * half + 1] = v.y;
    words[4 * half + 2] = v.z;
    words[4 * half + 3] = v.w;
  }
}

}  // namespace jax_symm

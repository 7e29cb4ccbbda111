// The reading end of the accumulators of SM100: tensor memory to rounded rows in registers.
#pragma once

#include <cstdint>

#include "kernels/epilogue/pack_pair.cuh"
#include "kernels/epilogue/sm100_staging_bytes.h"
#include "kernels/mainloop/pipeline_state.cuh"
#include "kernels/mainloop/sm100_tile.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tcgen05.cuh"

namespace jax_symm {

inline constexpr int kChunkWords = kChunkColumns / 2;

/// One epilogue warp's quarter of each accumulator in turn: lane l has row 32 * warp + l.
template <typename Tile>
class Sm100AccumulatorReader {
 public:
  using Storage = typename Tile::SharedStorage;

  __device__ __forceinline__ void Wait(Storage& shared) {
    ptx::MbarrierWait(&shared.accumulator_full[state_.slot], state_.parity);
    ptx::TcgenFenceAfterSync();
  }

  /// kChunkColumns of this lane's row from `column` on, rounded to Element, two values a word.
  __device__ __forceinline__ void Load(Storage& shared, int column,
                                       uint32_t (&words)[kChunkWords]) {
    // The upper half of an address is the lane; each warp may read its own 32 of the 128 only.
    const uint32_t quarter = (threadIdx.x / 32 % 4) * 32;
    const uint32_t address =
        shared.tensor_base + (quarter << 16) + state_.slot * Tile::kTileN + column;
    float sums[kChunkColumns];
    ptx::TcgenLoad64(address, sums);
    ptx::TcgenWaitLoad(sums);
#pragma unroll
    for (int i = 0; i < kChunkWords; ++i) {
      words[i] = PackPair<typename Tile::Element>(sums[2 * i], sums[2 * i + 1]);
    }
  }

  /// This warp has taken what it needs: the MMA may overwrite the accumulator.
  __device__ __forceinline__ void Release(Storage& shared) {
    ptx::TcgenFenceBeforeSync();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) {
      ptx::MbarrierArriveCluster(&shared.accumulator_empty[state_.slot], 0);
    }
    state_.Advance();
  }

 private:
  PipelineState<Tile::kAccumulators> state_;
};

}  // namespace jax_symm

// The communication half behind the simplest possible mainloop: 128 threads that multiply and add,
// so that it is proven whatever the tensor cores do. Operands are small integers, row-major.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/comm/comm_loop.cuh"
#include "kernels/comm/tile_sink.cuh"
#include "kernels/schedule/tile_scheduler.cuh"
#include "kernels/sync/leave.cuh"

namespace jax_symm {
namespace {

constexpr uint32_t kMathThreads = 128;
constexpr uint32_t kMathBarrier = 1;
constexpr uint32_t kCommBarrier = 2;

template <typename Element_>
struct SimtTile {
  using Element = Element_;
  static constexpr int kTileM = 64;
  static constexpr int kTileN = 64;
  static constexpr int kCluster = 1;
  static constexpr uint32_t kCommThreads = 128;
};

template <typename Tile, typename Sink>
__device__ void MultiplyTile(const KernelParams& params, const Sink& sink, TileId tile,
                             const typename Tile::Element* x, const typename Tile::Element* w) {
  constexpr uint32_t kVectors = Tile::kTileN / kVectorElements;
  for (uint32_t index = threadIdx.x; index < Tile::kTileM * kVectors; index += kMathThreads) {
    const uint32_t row = tile.m * Tile::kTileM + index / kVectors;
    const uint32_t column = tile.n * Tile::kTileN + index % kVectors * kVectorElements;
    if (!sink.HasRow(row) || column >= params.n) continue;
    float sums[kVectorElements] = {};
    for (uint32_t k = 0; k < params.k; ++k) {
      const float a = static_cast<float>(x[uint64_t{row} * params.k + k]);
      float weights[kVectorElements] = {};
      AddTo<typename Tile::Element>(weights, ptx::LoadVector(w + uint64_t{k} * params.n + column));
      for (uint32_t i = 0; i < kVectorElements; ++i) sums[i] += a * weights[i];
    }
    StoreAs<typename Tile::Element>(OutputType::kElement, sums, [&](int, const ptx::Vector& v) {
      ptx::StoreVector(sink.RowPointer(row, column), v);
    });
  }
}

template <typename Tile, typename ReducerPolicy>
__device__ void MathRole(const KernelParams& params, uint32_t& claimed,
                         const typename Tile::Element* x, const typename Tile::Element* w) {
  const TileScheduler<Tile> scheduler(params);
  const TileSink<Tile, ReducerPolicy::kReducer> sink(params);
#ifdef JAX_SYMM_MUTANT_NO_DONE_WAIT
  const bool may_store = true;
#else
  const bool may_store = sink.BeforeFirstStore();
#endif
  while (true) {
    if (threadIdx.x == 0) claimed = scheduler.Claim();
    ptx::BarrierSync(kMathBarrier, kMathThreads);
    const uint32_t position = claimed;
    if (position == kNoMoreTiles) return;
    const TileId tile = scheduler.Decode(position, 0);
    if (may_store) MultiplyTile<Tile>(params, sink, tile, x, w);
    const bool complete = ptx::BarrierAnd(kMathBarrier, kMathThreads, may_store);
    if (complete && threadIdx.x < 32) sink.Publish(tile);
  }
}

template <typename Element, typename ReducerPolicy, Collective kCollective>
__device__ void Kernel(const KernelParams& params, const void* x, const void* w) {
  using Tile = SimtTile<Element>;
  __shared__ CommMailbox mailbox;
  __shared__ uint32_t claimed;
  if (threadIdx.x < kMathThreads) {
    MathRole<Tile, ReducerPolicy>(params, claimed, static_cast<const Element*>(x),
                                  static_cast<const Element*>(w));
  } else {
    CommLoop<Tile, ReducerPolicy, kCollective, kCommBarrier>(params, mailbox,
                                                             threadIdx.x - kMathThreads)
        .Run();
  }
  __syncthreads();
  if (threadIdx.x < 32) LeaveLaunch(params);
}

}  // namespace

#define JAX_SYMM_KERNEL(name, element, reducer, collective)                             \
  extern "C" __global__ void __launch_bounds__(256)                                     \
      name(const __grid_constant__ KernelParams params, const void* x, const void* w) { \
    Kernel<element, reducer, Collective::collective>(params, x, w);                     \
  }

JAX_SYMM_KERNEL(push_rs, __nv_bfloat16, PushReducer, kReduceScatter)
JAX_SYMM_KERNEL(push_ar, __nv_bfloat16, PushReducer, kAllReduce)
JAX_SYMM_KERNEL(pull_rs, __nv_bfloat16, PullReducer, kReduceScatter)
JAX_SYMM_KERNEL(pull_ar, __nv_bfloat16, PullReducer, kAllReduce)
JAX_SYMM_KERNEL(multicast_rs, __nv_bfloat16, MulticastReducer, kReduceScatter)
JAX_SYMM_KERNEL(multicast_ar, __nv_bfloat16, MulticastReducer, kAllReduce)
JAX_SYMM_KERNEL(push_rs_f16, __half, PushReducer, kReduceScatter)
JAX_SYMM_KERNEL(multicast_ar_f16, __half, MulticastReducer, kAllReduce)

}  // namespace jax_symm

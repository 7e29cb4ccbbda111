// Exports SM100 kernels under the names that dispatch looks up.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/gemm_comm/sm100_kernel.cuh"
#include "kernels/gemm_comm/sm100_shapes.h"

// clang-format off
/// One kernel.
#define JAX_SYMM_SM100_KERNEL(element, Element, weights, kWeights, m, n, cluster, reducer,        \
                              ReducerPolicy, collective, kCollective)                             \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(320, 1)            \
  jax_symm_sm100_##element##_##weights##_##m##x##n##x##cluster##_##reducer##_##collective(        \
      const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,       \
      const __grid_constant__ jax_symm::KernelParams params) {                                    \
    using Policy = jax_symm::ReducerPolicy;                                                       \
    using Tile = jax_symm::Sm100ReducerTile<Element, jax_symm::WeightLayout::kWeights, n, cluster, \
                                            Policy::kReducer>;                                    \
    static_assert(Tile::kThreads == 320 && Tile::kTileM == m);                                    \
    jax_symm::Sm100GemmComm<Tile, Policy, jax_symm::Collective::kCollective>(&x_map, &w_map,      \
                                                                             params);             \
  }

#define JAX_SYMM_SM100_REDUCERS(element, Element, weights, kWeights, m, n, cluster, collective,   \
                                kCollective)                                                      \
  JAX_SYMM_SM100_KERNEL(element, Element, weights, kWeights, m, n, cluster, push, PushReducer,    \
                        collective, kCollective)                                                  \
  JAX_SYMM_SM100_KERNEL(element, Element, weights, kWeights, m, n, cluster, pull, PullReducer,    \
                        collective, kCollective)                                                  \
  JAX_SYMM_SM100_KERNEL(element, Element, weights, kWeights, m, n, cluster, multicast,            \
                        MulticastReducer, collective, kCollective)

/// The kernels of one shape, for one element type and weight layout.
#define JAX_SYMM_SM100_KERNELS(element, Element, weights, kWeights, m, n, cluster)                \
  JAX_SYMM_SM100_REDUCERS(element, Element, weights, kWeights, m, n, cluster, rs, kReduceScatter) \
  JAX_SYMM_SM100_REDUCERS(element, Element, weights, kWeights, m, n, cluster, ar, kAllReduce)
// clang-format on

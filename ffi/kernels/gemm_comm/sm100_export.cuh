// Exports the SM100 kernels of one reducer under the names that dispatch looks up.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/gemm_comm/sm100_kernel.cuh"
#include "kernels/gemm_comm/sm100_shapes.h"

#define JAX_SYMM_SM100_KERNEL(name, type, layout, tile_n, cluster, policy, collective)             \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(320, 1)             \
      name(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,   \
           const __grid_constant__ jax_symm::KernelParams params) {                                \
    using Policy = jax_symm::policy;                                                               \
    using Tile = jax_symm::Sm100ReducerTile<type, jax_symm::WeightLayout::layout, tile_n, cluster, \
                                            Policy::kReducer>;                                     \
    jax_symm::Sm100GemmComm<Tile, Policy, jax_symm::Collective::collective>(&x_map, &w_map,        \
                                                                            params);               \
  }

#define JAX_SYMM_SM100_COLLECTIVES(prefix, type, layout, tile_n, cluster, reducer, policy)        \
  JAX_SYMM_SM100_KERNEL(prefix##_128x##tile_n##x##cluster##_##reducer##_rs, type, layout, tile_n, \
                        cluster, policy, kReduceScatter)                                          \
  JAX_SYMM_SM100_KERNEL(prefix##_128x##tile_n##x##cluster##_##reducer##_ar, type, layout, tile_n, \
                        cluster, policy, kAllReduce)

#define JAX_SYMM_SM100_OPERANDS(tile_n, cluster, reducer, policy)                                  \
  JAX_SYMM_SM100_COLLECTIVES(jax_symm_sm100_bf16_kn, __nv_bfloat16, kKN, tile_n, cluster, reducer, \
                             policy)                                                               \
  JAX_SYMM_SM100_COLLECTIVES(jax_symm_sm100_bf16_nk, __nv_bfloat16, kNK, tile_n, cluster, reducer, \
                             policy)                                                               \
  JAX_SYMM_SM100_COLLECTIVES(jax_symm_sm100_f16_kn, __half, kKN, tile_n, cluster, reducer, policy) \
  JAX_SYMM_SM100_COLLECTIVES(jax_symm_sm100_f16_nk, __half, kNK, tile_n, cluster, reducer, policy)

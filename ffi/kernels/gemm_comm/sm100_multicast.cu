// The SM100 kernels that reduce by multicast.
#include "kernels/gemm_comm/sm100_export.cuh"

#define JAX_SYMM_EXPORT(tile_n, cluster) \
  JAX_SYMM_SM100_OPERANDS(tile_n, cluster, multicast, MulticastReducer)
JAX_SYMM_SM100_SHAPES(JAX_SYMM_EXPORT)

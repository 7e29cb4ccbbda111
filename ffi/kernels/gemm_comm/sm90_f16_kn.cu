// SM90 kernels for f16 operands and weights [k, n].
#include "kernels/gemm_comm/sm90_kernel.cuh"
#include "kernels/gemm_comm/sm90_shapes.h"

#define JAX_SYMM_SHAPE(m, n, stages, cluster) \
  JAX_SYMM_SM90_KERNELS(f16, __half, kn, kKN, m, n, stages, cluster)

JAX_SYMM_SM90_SHAPES(JAX_SYMM_SHAPE)

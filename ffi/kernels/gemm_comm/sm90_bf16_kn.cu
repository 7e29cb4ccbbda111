// SM90 kernels for bf16 operands and weights [k, n].
#include "kernels/gemm_comm/sm90_kernel.cuh"
#include "kernels/gemm_comm/sm90_shapes.h"

#define JAX_SYMM_SHAPE(m, n, stages, cluster) \
  JAX_SYMM_SM90_KERNELS(bf16, __nv_bfloat16, kn, kKN, m, n, stages, cluster)

JAX_SYMM_SM90_SHAPES(JAX_SYMM_SHAPE)

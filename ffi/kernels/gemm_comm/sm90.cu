// The SM90 kernels of one element type, weight layout and tile shape. The build says which:
// JAX_SYMM_KERNELS is "bf16, __nv_bfloat16, kn, kKN, 128, 256, 4, 2", one cubin each.
#include "kernels/gemm_comm/sm90_kernel.cuh"

#define JAX_SYMM_EXPAND(...) JAX_SYMM_SM90_KERNELS(__VA_ARGS__)
JAX_SYMM_EXPAND(JAX_SYMM_KERNELS)

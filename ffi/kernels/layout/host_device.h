// Marks functions that the host compiler and device code share.
#pragma once

#ifdef __CUDACC__
#define JAX_SYMM_HOST_DEVICE __host__ __device__
#else
#define JAX_SYMM_HOST_DEVICE
#endif

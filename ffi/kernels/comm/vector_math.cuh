// Eight elements at a time: to f32, and rounded back once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/layout/kernel_params.h"
#include "kernels/ptx/memory.cuh"

namespace jax_symm {

inline constexpr int kVectorElements = 8;  // 16 bytes of bf16 or f16

__device__ __forceinline__ float2 UnpackPair(uint32_t word, __nv_bfloat16) {
  // A bf16 is the upper half of an f32.
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}
__device__ __forceinline__ float2 UnpackPair(uint32_t word, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

__device__ __forceinline__ uint32_t PackPair(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t PackPair(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <typename Element>
__device__ __forceinline__ void AddTo(float (&sums)[kVectorElements], const ptx::Vector& v) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = UnpackPair(v.words[i], Element());
    sums[2 * i] += pair.x;
    sums[2 * i + 1] += pair.y;
  }
}

/// Stores eight sums as the output type, by `store(index, vector)`: one vector of elements, or two
/// of f32.
template <typename Element, typename Store>
__device__ __forceinline__ void StoreAs(OutputType type, const float (&sums)[kVectorElements],
                                        Store store) {
  ptx::Vector v;
  if (type == OutputType::kElement) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v.words[i] = PackPair(sums[2 * i], sums[2 * i + 1], Element());
    store(0, v);
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v.words[i] = __float_as_uint(sums[4 * half + i]);
    store(half, v);
  }
}

}  // namespace jax_symm

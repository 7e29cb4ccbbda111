// 32-byte stores to global memory (PTX ISA 8.8, sm_100).
#pragma once

#include <cstdint>

namespace jax_symm::ptx {

/// st.global.v8.b32 past L1: weak, `destination` a multiple of 32 bytes. For what this SM will
/// not read again. `v` has eight words.
__device__ __forceinline__ void StoreWideNoAllocate(void* destination, const uint32_t* v) {
  asm volatile("st.global.L1::no_allocate.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};"
               :
               : "l"(destination), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]),
                 "r"(v[6]), "r"(v[7])
               : "memory");
}

}  // namespace jax_symm::ptx

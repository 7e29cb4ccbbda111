// Addresses in the shared state space: of this CTA, and of the same variable in another CTA.
#pragma once

#include <cstdint>

namespace jax_symm::ptx {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// mapa (PTX ISA 7.8, sm_90): the address of `shared_address` in CTA `cta` of this cluster.
__device__ __forceinline__ uint32_t ClusterAddress(uint32_t shared_address, uint32_t cta) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(cta));
  return address;
}

/// st.shared::cluster (7.8): a weak store into another CTA; a cluster-scope release must follow.
__device__ __forceinline__ void StoreSharedCluster(uint32_t* pointer, uint32_t cta,
                                                   uint32_t value) {
  asm volatile(
      "st.shared::cluster.u32 [%0], %1;" ::"r"(ClusterAddress(SharedAddress(pointer), cta)),
      "r"(value)
      : "memory");
}

/// ld.shared.v4: 16 aligned bytes.
__device__ __forceinline__ uint4 LoadShared16(uint32_t shared_address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared_address)
               : "memory");
  return value;
}

/// st.global.v4: 16 aligned bytes, weak.
__device__ __forceinline__ void StoreGlobal16(uint64_t address, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace jax_symm::ptx

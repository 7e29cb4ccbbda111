// Loads, stores and atomics of global memory whose order or scope matters. The name says both:
// .gpu for words that only this device touches, .sys for what crosses devices.
// Morally strong only between accesses whose scopes include each other.
#pragma once

#include <cstdint>

namespace jax_symm::ptx {

/// ld.relaxed.gpu.global.u64 (PTX ISA 6.0, sm_70): strong, orders nothing else.
__device__ __forceinline__ uint64_t LoadRelaxedGpu(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

/// ld.relaxed.sys.global.u64 (6.0, sm_70): strong, orders nothing else.
__device__ __forceinline__ uint64_t LoadRelaxedSys(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

/// ld.relaxed.sys.global.u32 (6.0, sm_70): strong, orders nothing else. Also of host memory.
__device__ __forceinline__ uint32_t LoadRelaxedSys(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/// ld.acquire.sys.global.u64 (6.0, sm_70): what precedes the release that stored the value is
/// visible to what follows.
__device__ __forceinline__ uint64_t LoadAcquireSys(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

/// st.relaxed.sys.global.u64 (6.0, sm_70): strong, orders nothing else.
__device__ __forceinline__ void StoreRelaxedSys(uint64_t* address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/// st.relaxed.gpu.global.u32 (6.0, sm_70): strong, orders nothing else.
__device__ __forceinline__ void StoreRelaxedGpu(uint32_t* address, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// st.release.sys.global.u64 (6.0, sm_70): publishes, to whoever acquires the value, what this
/// thread did before and what it has synchronised with, such as a barrier's other threads.
__device__ __forceinline__ void StoreReleaseSys(uint64_t* address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/// atom.relaxed.gpu.global.add.u32 (6.0, sm_70): returns the old value, orders nothing else.
__device__ __forceinline__ uint32_t AtomicAddRelaxedGpu(uint32_t* address, uint32_t value) {
  uint32_t old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

/// atom.acq_rel.gpu.global.add.u32 (6.0, sm_70): returns the old value; whoever adds later has
/// everything that was done before earlier adds.
__device__ __forceinline__ uint32_t AtomicAddAcqRelGpu(uint32_t* address, uint32_t value) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

/// atom.relaxed.gpu.global.exch.b32 (6.0, sm_70): returns the old value, orders nothing else.
__device__ __forceinline__ uint32_t ExchangeRelaxedGpu(uint32_t* address, uint32_t value) {
  uint32_t old;
  asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

/// atom.relaxed.sys.global.cas.b64 (6.0, sm_70): returns the old value, orders nothing else. On a
/// peer's memory it needs native atomics over the link, as NVLink has.
__device__ __forceinline__ uint64_t CompareAndSwapRelaxedSys(uint64_t* address, uint64_t expected,
                                                             uint64_t desired) {
  uint64_t old;
  asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(address), "l"(expected), "l"(desired)
               : "memory");
  return old;
}

/// Sixteen bytes: what one thread moves at a time.
struct alignas(16) Vector {
  uint32_t words[4];
};

/// ld.global.L1::no_allocate.v4.b32 (7.4, sm_70): weak, so it must be ordered after the stores it
/// reads by an acquire. No memory clobber: many may be in flight; they stay ordered with respect
/// to barriers and acquires, which are volatile too.
__device__ __forceinline__ Vector LoadVector(const void* address) {
  Vector v;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(address));
  return v;
}

/// st.global.v4.b32 (1.0): weak; a release must follow before anyone else reads.
__device__ __forceinline__ void StoreVector(void* address, const Vector& v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.words[0]),
               "r"(v.words[1]), "r"(v.words[2]), "r"(v.words[3])
               : "memory");
}

}  // namespace jax_symm::ptx

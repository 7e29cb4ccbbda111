// tcgen05: tensor memory, the matrix unit of SM100 and what orders them (PTX ISA 8.6, sm_100f).
//
// Every statement is volatile and clobbers memory: the compiler sees neither tensor memory nor
// the asynchronous unit, so nothing else keeps a read of it behind the wait that allows it.
#pragma once

#include <cstdint>

#include "kernels/ptx/shared_address.cuh"

namespace jax_symm::ptx {

/// The CTAs that run one matrix instruction: 1, or the 2 CTAs of a cluster of two.
template <int kCtaGroup>
inline constexpr bool kIsCtaGroup = kCtaGroup == 1 || kCtaGroup == 2;

/// Allocates `columns` (a power of two, 32..512) of tensor memory and writes the address of the
/// first to `*result`. A whole warp calls it; with two CTAs, one warp of each.
template <int kCtaGroup>
__device__ __forceinline__ void TcgenAlloc(uint32_t* result, uint32_t columns) {
  static_assert(kIsCtaGroup<kCtaGroup>);
  if constexpr (kCtaGroup == 1) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
                 :
                 : "r"(SharedAddress(result)), "r"(columns)
                 : "memory");
  } else {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;"
                 :
                 : "r"(SharedAddress(result)), "r"(columns)
                 : "memory");
  }
}

/// Gives up the right to allocate, so that a CTA which shares the SM is not held up.
template <int kCtaGroup>
__device__ __forceinline__ void TcgenRelinquish() {
  static_assert(kIsCtaGroup<kCtaGroup>);
  if constexpr (kCtaGroup == 1) {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  } else {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
  }
}

/// The warp that allocated frees, after a barrier behind the last use by any warp (of the pair).
template <int kCtaGroup>
__device__ __forceinline__ void TcgenDealloc(uint32_t address, uint32_t columns) {
  static_assert(kIsCtaGroup<kCtaGroup>);
  if constexpr (kCtaGroup == 1) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;"
                 :
                 : "r"(address), "r"(columns)
                 : "memory");
  } else {
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;"
                 :
                 : "r"(address), "r"(columns)
                 : "memory");
  }
}

/// D (tensor memory, f32) = A * B (+ D if `accumulate`), K = 16, f16 or bf16 operands in shared
/// memory. One thread calls it, with two CTAs one thread of the even CTA. Asynchronous: the same
/// thread's TcgenCommit tells when it is done; successive calls run in order.
template <int kCtaGroup>
__device__ __forceinline__ void TcgenMmaF16(uint32_t d, uint64_t a, uint64_t b,
                                            uint32_t instruction, bool accumulate) {
  static_assert(kIsCtaGroup<kCtaGroup>);
  if constexpr (kCtaGroup == 1) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}"
        :
        : "r"(d), "l"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate))
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n}"
        :
        : "r"(d), "l"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate))
        : "memory");
  }
}

/// Arrives once on `barrier` when every earlier tcgen05.mma of this thread is complete; with two
/// CTAs, on the barrier at the same offset in both. Implies tcgen05.fence::before_thread_sync.
template <int kCtaGroup>
__device__ __forceinline__ void TcgenCommit(uint64_t* barrier) {
  static_assert(kIsCtaGroup<kCtaGroup>);
  if constexpr (kCtaGroup == 1) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
                 :
                 : "r"(SharedAddress(barrier))
                 : "memory");
  } else {
    constexpr uint16_t kBothCtas = 0b11;
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        " [%0], %1;"
        :
        : "r"(SharedAddress(barrier)), "h"(kBothCtas)
        : "memory");
  }
}

#define JAX_SYMM_8(constraint, v, i)                                                  \
  constraint(v[i]), constraint(v[i + 1]), constraint(v[i + 2]), constraint(v[i + 3]), \
      constraint(v[i + 4]), constraint(v[i + 5]), constraint(v[i + 6]), constraint(v[i + 7])
#define JAX_SYMM_64(constraint, v)                                                                 \
  JAX_SYMM_8(constraint, v, 0), JAX_SYMM_8(constraint, v, 8), JAX_SYMM_8(constraint, v, 16),       \
      JAX_SYMM_8(constraint, v, 24), JAX_SYMM_8(constraint, v, 32), JAX_SYMM_8(constraint, v, 40), \
      JAX_SYMM_8(constraint, v, 48), JAX_SYMM_8(constraint, v, 56)

/// 64 columns of the calling warp's own 32 lanes: `out[c]` of lane l is row l, column c. The
/// values exist only after TcgenWaitLoad. `address` holds the lane in its upper half; warp w of
/// a CTA may read lanes 32 * (w % 4) .. + 31 only.
__device__ __forceinline__ void TcgenLoad64(uint32_t address, float (&out)[64]) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x64.b32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, [%64];"
      : JAX_SYMM_64("=f", out)
      : "r"(address)
      : "memory");
}

/// Waits for this thread's tensor memory loads. Takes the registers in and out, so that no use
/// of them can be moved in front of it.
__device__ __forceinline__ void TcgenWaitLoad(float (&values)[64]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" : JAX_SYMM_64("+f", values) : : "memory");
}

#undef JAX_SYMM_64
#undef JAX_SYMM_8

/// Orders this thread's earlier tensor memory accesses before a barrier or an arrive.
__device__ __forceinline__ void TcgenFenceBeforeSync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

/// Orders this thread's later tensor memory accesses after a barrier or a wait.
__device__ __forceinline__ void TcgenFenceAfterSync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

}  // namespace jax_symm::ptx

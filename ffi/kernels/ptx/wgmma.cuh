// wgmma (PTX ISA 8.0, sm_90a): asynchronous matrix multiply of one warpgroup, operands in shared
// memory, f32 accumulators in registers. D[64, n] += A[64, 16] * B[n, 16]^T.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace jax_symm::ptx {

/// wgmma.fence: orders register accesses of this warpgroup before the wgmmas that follow.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// wgmma.wait_group: at most `kPending` of the latest groups are still running.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Ties the accumulators to this point of the program, so that no access moves across a wait.
template <int kCount>
__device__ __forceinline__ void WgmmaPin(float (&accumulator)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulator[i])::"memory");
}

/// Matrix descriptor of a 128-byte swizzled tile. K-major: rows of 128 bytes, `stride_bytes` from
/// one group of 8 rows to the next. MN-major: `stride_bytes` from one group of 8 k to the next,
/// `leading_bytes` from one block of 64 mn to the next.
__device__ __forceinline__ uint64_t WgmmaDescriptor(uint32_t shared_address, uint32_t leading_bytes,
                                                    uint32_t stride_bytes) {
  constexpr uint64_t kSwizzle128B = uint64_t{1} << 62;
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes >> 4) & 0x3FFF); };
  return kSwizzle128B | field(stride_bytes) << 32 | field(leading_bytes) << 16 |
         field(shared_address);
}

/// Issues one wgmma; D is in flight until WgmmaWait. `accumulate == 0` overwrites D.
template <typename Element, int kN, bool kTransposeB>
struct Wgmma;

// The instruction spells every accumulator register; these macros do the spelling.
#define JAX_SYMM_REGS_0                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define JAX_SYMM_REGS_1                      \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define JAX_SYMM_REGS_2                      \
  "%64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define JAX_SYMM_REGS_3                              \
  "%96, %97, %98, %99, %100, %101, %102, %103, "     \
  "%104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define JAX_SYMM_REGS_64 JAX_SYMM_REGS_0
#define JAX_SYMM_REGS_128 JAX_SYMM_REGS_0 ", " JAX_SYMM_REGS_1
#define JAX_SYMM_REGS_256 JAX_SYMM_REGS_128 ", " JAX_SYMM_REGS_2 ", " JAX_SYMM_REGS_3
#define JAX_SYMM_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define JAX_SYMM_D16(i) JAX_SYMM_D4(i), JAX_SYMM_D4(i + 4), JAX_SYMM_D4(i + 8), JAX_SYMM_D4(i + 12)
#define JAX_SYMM_D32(i) JAX_SYMM_D16(i), JAX_SYMM_D16(i + 16)
#define JAX_SYMM_D_64 JAX_SYMM_D32(0)
#define JAX_SYMM_D_128 JAX_SYMM_D32(0), JAX_SYMM_D32(32)
#define JAX_SYMM_D_256 JAX_SYMM_D_128, JAX_SYMM_D32(64), JAX_SYMM_D32(96)

#define JAX_SYMM_DEFINE_WGMMA(element, type, n, a, b, accumulates, transpose)                  \
  template <bool kTransposeB>                                                                  \
  struct Wgmma<element, n, kTransposeB> {                                                      \
    static __device__ __forceinline__ void Issue(float (&d)[n / 2], uint64_t a_descriptor,     \
                                                 uint64_t b_descriptor, uint32_t accumulate) { \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " accumulates                         \
                   ", 0;\n\t"                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type             \
                   " {" JAX_SYMM_REGS_##n "}, " a ", " b ", p, 1, 1, 0, " transpose ";\n\t}"   \
                   : JAX_SYMM_D_##n                                                            \
                   : "l"(a_descriptor), "l"(b_descriptor), "r"(accumulate),                    \
                     "n"(kTransposeB ? 1 : 0)                                                  \
                   : "memory");                                                                \
    }                                                                                          \
  };

JAX_SYMM_DEFINE_WGMMA(__nv_bfloat16, "bf16", 64, "%32", "%33", "%34", "%35")
JAX_SYMM_DEFINE_WGMMA(__nv_bfloat16, "bf16", 128, "%64", "%65", "%66", "%67")
JAX_SYMM_DEFINE_WGMMA(__nv_bfloat16, "bf16", 256, "%128", "%129", "%130", "%131")
JAX_SYMM_DEFINE_WGMMA(__half, "f16", 64, "%32", "%33", "%34", "%35")
JAX_SYMM_DEFINE_WGMMA(__half, "f16", 128, "%64", "%65", "%66", "%67")
JAX_SYMM_DEFINE_WGMMA(__half, "f16", 256, "%128", "%129", "%130", "%131")

#undef JAX_SYMM_DEFINE_WGMMA
#undef JAX_SYMM_D_256
#undef JAX_SYMM_D_128
#undef JAX_SYMM_D_64
#undef JAX_SYMM_D32
#undef JAX_SYMM_D16
#undef JAX_SYMM_D4
#undef JAX_SYMM_REGS_256
#undef JAX_SYMM_REGS_128
#undef JAX_SYMM_REGS_64
#undef JAX_SYMM_REGS_3
#undef JAX_SYMM_REGS_2
#undef JAX_SYMM_REGS_1
#undef JAX_SYMM_REGS_0

}  // namespace jax_symm::ptx

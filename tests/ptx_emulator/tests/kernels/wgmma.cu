// One 128 x 128 tile a CTA, K = 64 * steps: two math warpgroups, one producer warp, TMA loads,
// wgmma, stmatrix, TMA store.
#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>

constexpr int kStages = 2;

__device__ __forceinline__ uint32_t Shared(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void Wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra "
      "W;\nD:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ uint64_t Descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | (static_cast<uint64_t>(1) << 16) |
         (static_cast<uint64_t>(1024 >> 4) << 32) | (static_cast<uint64_t>(1) << 62);
}

__device__ __forceinline__ void Wgmma(float (&d)[64], uint64_t a, uint64_t b) {
#define R8(i)                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
  asm volatile(
      "{\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"
      "25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,"
      "%55,%56,%57,%58,%59,%60,%61,"
      "%62,%63}, %64, %65, 1, 1, 1, 0, 0;\n}"
      : R8(0), R8(8), R8(16), R8(24), R8(32), R8(40), R8(48), R8(56)
      : "l"(a), "l"(b));
}

extern "C" __global__ void __launch_bounds__(384)
    gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
         const __grid_constant__ CUtensorMap map_c, int steps) {
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ __align__(8) uint64_t full[kStages], empty[kStages];
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t base = Shared(smem);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(Shared(&full[s])));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(Shared(&empty[s])));
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      for (int k = 0; k < steps; ++k) {
        const int s = k % kStages;
        Wait(Shared(&empty[s]), (k / kStages & 1) ^ 1);
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Shared(&full[s])),
            "r"(32768)
            : "memory");
        for (int operand = 0; operand < 2; ++operand) {
          const CUtensorMap* map = operand ? &map_b : &map_a;
          asm volatile(
              "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
              "[%0], [%1, {%2, %3}], [%4];" ::"r"(base + s * 32768 + operand * 16384),
              "l"(map), "r"(k * 64), "r"(static_cast<int>(operand ? blockIdx.y : blockIdx.x) * 128),
              "r"(Shared(&full[s]))
              : "memory");
        }
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float d[64];
  for (int i = 0; i < 64; ++i) d[i] = 0.f;
  for (int k = 0; k < steps; ++k) {
    const int s = k % kStages;
    Wait(Shared(&full[s]), k / kStages & 1);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int j = 0; j < 4; ++j) {
      Wgmma(d, Descriptor(base + s * 32768 + (group - 1) * 8192 + 32 * j),
            Descriptor(base + s * 32768 + 16384 + 32 * j));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (threadIdx.x % 128 == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Shared(&empty[s])) : "memory");
  }
  const uint32_t out = base + kStages * 32768 + (group - 1) * 16384;
  for (int c = 0; c < 128; c += 16) {
    uint32_t p[4];
    for (int h = 0; h < 4; ++h) {
      const int i = c / 8 * 4 + h / 2 * 4 + h % 2 * 2;
      __nv_bfloat162 v = __floats2bfloat162_rn(d[i], d[i + 1]);
      p[h] = *reinterpret_cast<uint32_t*>(&v);
    }
    const int row = warp % 4 * 16 + lane % 16, column = c + lane / 16 * 8;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     out + row * 256 + column * 2),
                 "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3])
                 : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
  if (threadIdx.x % 128 == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
            &map_c),
        "r"(static_cast<int>(blockIdx.y) * 128),
        "r"(static_cast<int>(blockIdx.x) * 128 + (group - 1) * 64), "r"(out)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

// All-reduce of one f32 vector through the multicast window: partial, flag to every peer, reduce
// and broadcast, flag, copy out.
#include <stdint.h>

struct Peers {
  float* data[16];
  uint32_t* flags[16];
};

__device__ __forceinline__ void Signal(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ void Await(const uint32_t* flag, uint32_t value) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if (seen < value) __nanosleep(40);
  } while (seen < value);
}

// flags[phase * 16 + src] on every rank; blockDim.x = 128, one CTA.
extern "C" __global__ void all_reduce(const __grid_constant__ Peers peers, float* multicast,
                                      const float* in, float* out, int n, int rank, int ranks,
                                      uint32_t epoch) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) peers.data[rank][i] = in[i];
  __syncthreads();
  if (threadIdx.x < ranks) {
    asm volatile("fence.proxy.alias;" ::: "memory");
    Signal(peers.flags[threadIdx.x] + rank, epoch);
    Await(peers.flags[rank] + threadIdx.x, epoch);
  }
  __syncthreads();
  const int share = n / ranks;
  for (int i = rank * share + threadIdx.x * 4; i < (rank + 1) * share; i += blockDim.x * 4) {
    float v[4];
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "l"(multicast + i)
                 : "memory");
    asm volatile(
        "multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(multicast + i),
        "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
        : "memory");
  }
  __syncthreads();
  if (threadIdx.x < ranks) {
    asm volatile("fence.proxy.alias;" ::: "memory");
    Signal(peers.flags[threadIdx.x] + 16 + rank, epoch);
    Await(peers.flags[rank] + 16 + threadIdx.x, epoch);
    asm volatile("fence.proxy.alias;" ::: "memory");
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = peers.data[rank][i];
}

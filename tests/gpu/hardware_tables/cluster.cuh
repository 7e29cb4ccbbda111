// What a pair of CTAs sees: shared addresses of the cluster, and a multicast TMA load.
#ifndef JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_CLUSTER_CUH_
#define JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_CLUSTER_CUH_

#include <vector>

#include "device.cuh"
#include "json.h"
#include "tma.cuh"

namespace jax_symm::hardware_tables {

constexpr int kPair = 2;

// What CTA `rank` of the pair saw.
struct PairFacts {
  uint32_t rank;
  uint32_t own_address;            // of its barrier
  uint32_t mapped_address[kPair];  // of that barrier in either CTA
  uint32_t own_seen;               // the value that CTA `rank` finds in its own marker
  uint32_t completed;              // the barrier, with the bytes of one box
};

__device__ inline uint32_t MapToRank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ inline void ClusterSync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void TmaLoadMulticast(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                        uint16_t mask, const Coordinates& c) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c.x[0]), "r"(c.x[1]), "h"(mask)
      : "memory");
}

// CTA `issuer` loads one box into the CTAs of `mask`; each waits on its own barrier.
__global__ void __cluster_dims__(kPair, 1, 1)
    MulticastKernel(const __grid_constant__ CUtensorMap map, Coordinates coords, uint32_t issuer,
                    uint32_t mask, int box_bytes, uint16_t* image_out, PairFacts* facts) {
  extern __shared__ uint8_t dynamic[];
  __shared__ alignas(8) uint64_t barrier;
  __shared__ uint32_t marker;
  uint8_t* image = AlignTo1024(dynamic);
  const uint32_t rank = ClusterRank();
  for (int i = threadIdx.x; i < kTmaImageBytes; i += blockDim.x) image[i] = 0xee;
  FenceProxyAsync();
  if (threadIdx.x == 0) {
    BarrierInit(&barrier, 1);
    if (mask >> rank & 1) BarrierArriveExpectTx(&barrier, box_bytes);
  }
  ClusterSync();  // before it, the other CTA may not have started
  if (threadIdx.x == 0) {
    // Each CTA marks the other one, through the address that mapa gives.
    asm volatile(
        "st.shared::cluster.u32 [%0], %1;" ::"r"(MapToRank(SharedAddress(&marker), rank ^ 1)),
        "r"(rank + 100)
        : "memory");
  }
  FenceProxyAsync();
  ClusterSync();
  if (threadIdx.x == 0) {
    if (rank == issuer) {
      TmaLoadMulticast(SharedAddress(image), &map, SharedAddress(&barrier), mask, coords);
    }
    PairFacts seen{rank, SharedAddress(&barrier), {}, marker, 0};
    for (int i = 0; i < kPair; ++i) seen.mapped_address[i] = MapToRank(seen.own_address, i);
    seen.completed = BarrierPollParity(&barrier, 0);
    facts[rank] = seen;
  }
  ClusterSync();
  const uint16_t* slots = reinterpret_cast<const uint16_t*>(image);
  uint16_t* mine = image_out + rank * (kTmaImageBytes / 2);
  for (int i = threadIdx.x; i < kTmaImageBytes / 2; i += blockDim.x) mine[i] = slots[i];
}

inline Object MeasureMulticast(uint32_t issuer, uint32_t mask) {
  const TmaCase c{"multicast", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                  2,           CU_TENSOR_MAP_SWIZZLE_128B,
                  {96, 40},    {64, 16},
                  {8, 4}};
  std::vector<uint16_t> values(TensorSlots(c));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i + 1;
  DeviceArray<uint16_t> global(values), image(std::vector<uint16_t>(kPair * kTmaImageBytes / 2));
  DeviceArray<PairFacts> facts(std::vector<PairFacts>{{}, {}});
  const int box_bytes = Product(c.box) * c.element_bytes;
  MulticastKernel<<<kPair, 128, kTmaImageBytes + 1024>>>(EncodeMap(c, global.get()),
                                                         ToCoordinates(c), issuer, mask, box_bytes,
                                                         image.get(), facts.get());
  const std::vector<uint16_t> images = image.Read();
  std::vector<int> own, mapped, marker, completed;
  for (const PairFacts& seen : facts.Read()) {
    own.push_back(seen.own_address);
    mapped.insert(mapped.end(), seen.mapped_address, seen.mapped_address + kPair);
    marker.push_back(seen.own_seen);
    completed.push_back(seen.completed);
  }
  Object object = Describe(c);
  object.Add("issuer", static_cast<int>(issuer)).Add("mask", static_cast<int>(mask));
  object.Add("own_address", own).Add("mapped_address", mapped).Add("marker", marker);
  object.Add("completed_with_box_bytes", completed);
  const auto middle = images.begin() + kTmaImageBytes / 2;
  object.AddHex("image0", TrimPoison({images.begin(), middle}));
  return object.AddHex("image1", TrimPoison({middle, images.end()}));
}

inline std::vector<Object> MeasureMulticasts() {
  return {MeasureMulticast(0, 3), MeasureMulticast(1, 3), MeasureMulticast(0, 2),
          MeasureMulticast(1, 1)};
}

}  // namespace jax_symm::hardware_tables

#endif  // JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_CLUSTER_CUH_

// Where a TMA box lands in shared memory, and what comes back to global memory.
#ifndef JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_TMA_CUH_
#define JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_TMA_CUH_

#include <string>
#include <vector>

#include "device.cuh"
#include "isolated.h"
#include "json.h"

namespace jax_symm::hardware_tables {

constexpr int kMaxRank = 5;
constexpr int kTmaImageBytes = 16384;

struct TmaCase {
  const char* name;
  CUtensorMapDataType type;
  int element_bytes;
  CUtensorMapSwizzle swizzle;
  std::vector<int> dims;    // innermost first
  std::vector<int> box;     // innermost first
  std::vector<int> coords;  // innermost first
  int offset = 0;           // of the box in the shared image
  int pitch = 0;            // elements from row to row, 0: the innermost dimension
};

struct Coordinates {
  int x[kMaxRank];
};

#define JAX_SYMM_TMA_LOAD(RANK, COORDS, ...)                                                  \
  asm volatile("cp.async.bulk.tensor." RANK                                                   \
               ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, " COORDS \
               "], [%2];" ::"r"(shared),                                                      \
               "l"(map), "r"(barrier), __VA_ARGS__                                            \
               : "memory")

#define JAX_SYMM_TMA_STORE(RANK, COORDS, ...)                                                  \
  asm volatile("cp.async.bulk.tensor." RANK ".global.shared::cta.tile.bulk_group [%1, " COORDS \
               "], [%0];" ::"r"(shared),                                                       \
               "l"(map), "r"(0), __VA_ARGS__                                                   \
               : "memory")

__device__ inline void TmaLoad(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int rank,
                               const Coordinates& c) {
  switch (rank) {
    case 1:
      JAX_SYMM_TMA_LOAD("1d", "{%3}", "r"(c.x[0]));
      break;
    case 2:
      JAX_SYMM_TMA_LOAD("2d", "{%3, %4}", "r"(c.x[0]), "r"(c.x[1]));
      break;
    case 3:
      JAX_SYMM_TMA_LOAD("3d", "{%3, %4, %5}", "r"(c.x[0]), "r"(c.x[1]), "r"(c.x[2]));
      break;
    case 4:
      JAX_SYMM_TMA_LOAD("4d", "{%3, %4, %5, %6}", "r"(c.x[0]), "r"(c.x[1]), "r"(c.x[2]),
                        "r"(c.x[3]));
      break;
    default:
      JAX_SYMM_TMA_LOAD("5d", "{%3, %4, %5, %6, %7}", "r"(c.x[0]), "r"(c.x[1]), "r"(c.x[2]),
                        "r"(c.x[3]), "r"(c.x[4]));
  }
}

__device__ inline void TmaStore(const CUtensorMap* map, uint32_t shared, int rank,
                                const Coordinates& c) {
  if (rank == 2) {
    JAX_SYMM_TMA_STORE("2d", "{%3, %4}", "r"(c.x[0]), "r"(c.x[1]));
  } else {
    JAX_SYMM_TMA_STORE("3d", "{%3, %4, %5}", "r"(c.x[0]), "r"(c.x[1]), "r"(c.x[2]));
  }
}

// Loads one box into a poisoned image and copies the image out.
__global__ void TmaLoadKernel(const __grid_constant__ CUtensorMap map, Coordinates coords, int rank,
                              int offset, int box_bytes, uint16_t* image_out, uint32_t* facts) {
  extern __shared__ uint8_t dynamic[];
  __shared__ alignas(8) uint64_t barrier;
  uint8_t* image = AlignTo1024(dynamic);
  for (int i = threadIdx.x; i < kTmaImageBytes; i += blockDim.x) image[i] = 0xee;
  FenceProxyAsync();
  if (threadIdx.x == 0) BarrierInit(&barrier, 1);
  FenceProxyAsync();
  __syncthreads();
  if (threadIdx.x == 0) {
    BarrierArriveExpectTx(&barrier, box_bytes);
    TmaLoad(SharedAddress(image) + offset, &map, SharedAddress(&barrier), rank, coords);
    facts[0] = BarrierPollParity(&barrier, 0);
    facts[1] = SharedAddress(image);
  }
  __syncthreads();
  const uint16_t* slots = reinterpret_cast<const uint16_t*>(image);
  for (int i = threadIdx.x; i < kTmaImageBytes / 2; i += blockDim.x) image_out[i] = slots[i];
}

// Stores one box from an image whose 16-bit slot i holds i + 1.
__global__ void TmaStoreKernel(const __grid_constant__ CUtensorMap map, Coordinates coords,
                               int rank, int offset) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* image = AlignTo1024(dynamic);
  uint16_t* slots = reinterpret_cast<uint16_t*>(image);
  for (int i = threadIdx.x; i < kTmaImageBytes / 2; i += blockDim.x) slots[i] = i + 1;
  FenceProxyAsync();
  __syncthreads();
  if (threadIdx.x == 0) {
    TmaStore(&map, SharedAddress(image) + offset, rank, coords);
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

inline int Product(const std::vector<int>& values) {
  int product = 1;
  for (int value : values) product *= value;
  return product;
}

inline int RowElements(const TmaCase& c) { return c.pitch != 0 ? c.pitch : c.dims[0]; }

inline int TensorSlots(const TmaCase& c) {
  return Product(c.dims) / c.dims[0] * RowElements(c) * c.element_bytes / 2;
}

inline CUtensorMap EncodeMap(const TmaCase& c, void* global) {
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                   const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found;
  Check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000,
                                         cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled");
  cuuint64_t dims[kMaxRank], strides[kMaxRank], pitch = c.element_bytes;
  cuuint32_t box[kMaxRank], steps[kMaxRank];
  for (size_t i = 0; i < c.dims.size(); ++i) {
    dims[i] = c.dims[i];
    box[i] = c.box[i];
    steps[i] = 1;
    pitch *= i == 0 ? RowElements(c) : c.dims[i];
    strides[i] = pitch;
  }
  CUtensorMap map;
  const CUresult result = reinterpret_cast<Encode>(symbol)(
      &map, c.type, c.dims.size(), global, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      c.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "case %s: cuTensorMapEncodeTiled returned %d\n", c.name, result);
    std::exit(1);
  }
  return map;
}

inline Object Describe(const TmaCase& c) {
  static const char* const kSwizzles[] = {"none", "32B", "64B", "128B"};
  const char* type = c.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? "bf16" : "u32";
  Object object;
  object.Add("name", c.name).Add("dtype", type).Add("element_bytes", c.element_bytes);
  object.Add("swizzle", kSwizzles[c.swizzle]).Add("dims", c.dims).Add("box", c.box);
  object.Add("coords", c.coords).Add("offset", c.offset).Add("pitch", RowElements(c));
  return object;
}

inline Coordinates ToCoordinates(const TmaCase& c) {
  Coordinates coords{};
  for (size_t i = 0; i < c.coords.size(); ++i) coords.x[i] = c.coords[i];
  return coords;
}

// The image up to the last slot that the copy touched.
inline std::vector<uint16_t> TrimPoison(std::vector<uint16_t> slots) {
  while (!slots.empty() && slots.back() == 0xeeee) slots.pop_back();
  return slots;
}

inline Object MeasureLoad(const TmaCase& c) {
  std::vector<uint16_t> values(TensorSlots(c));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i + 1;
  DeviceArray<uint16_t> global(values), image(std::vector<uint16_t>(kTmaImageBytes / 2));
  DeviceArray<uint32_t> facts(std::vector<uint32_t>(2));
  const int box_bytes = Product(c.box) * c.element_bytes;
  TmaLoadKernel<<<1, 128, kTmaImageBytes + 1024>>>(EncodeMap(c, global.get()), ToCoordinates(c),
                                                   c.dims.size(), c.offset, box_bytes, image.get(),
                                                   facts.get());
  const std::vector<uint16_t> slots = TrimPoison(image.Read());
  const std::vector<uint32_t> seen = facts.Read();
  Object object = Describe(c);
  object.Add("completed_with_box_bytes", seen[0] != 0).Add("image_base", uint64_t{seen[1]});
  return object.AddHex("image", slots);
}

inline Object MeasureStore(const TmaCase& c) {
  DeviceArray<uint16_t> global(std::vector<uint16_t>(TensorSlots(c), 0xeeee));
  TmaStoreKernel<<<1, 128, kTmaImageBytes + 1024>>>(EncodeMap(c, global.get()), ToCoordinates(c),
                                                    c.dims.size(), c.offset);
  return Describe(c).AddHex("global", global.Read());
}

inline std::vector<Object> MeasureTmaLoads() {
  constexpr auto kBf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  constexpr auto kU32 = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  constexpr auto kNone = CU_TENSOR_MAP_SWIZZLE_NONE;
  constexpr auto k32 = CU_TENSOR_MAP_SWIZZLE_32B;
  constexpr auto k64 = CU_TENSOR_MAP_SWIZZLE_64B;
  constexpr auto k128 = CU_TENSOR_MAP_SWIZZLE_128B;
  const std::vector<TmaCase> cases = {
      {"none bf16", kBf16, 2, kNone, {96, 40}, {64, 16}, {8, 4}},
      {"32B bf16", kBf16, 2, k32, {96, 40}, {16, 32}, {8, 4}},
      {"64B bf16", kBf16, 2, k64, {96, 40}, {32, 32}, {8, 4}},
      {"128B bf16", kBf16, 2, k128, {96, 40}, {64, 16}, {8, 4}},
      {"none u32", kU32, 4, kNone, {48, 24}, {24, 10}, {4, 2}},
      {"32B u32", kU32, 4, k32, {48, 24}, {8, 20}, {4, 2}},
      {"64B u32", kU32, 4, k64, {48, 24}, {16, 20}, {4, 2}},
      {"128B u32", kU32, 4, k128, {48, 24}, {32, 12}, {4, 2}},
      {"128B bf16 inner box of half a span", kBf16, 2, k128, {96, 40}, {32, 16}, {8, 4}},
      {"64B bf16 inner box of half a span", kBf16, 2, k64, {96, 40}, {16, 16}, {8, 4}},
      {"128B bf16 inner box of 16 bytes", kBf16, 2, k128, {96, 40}, {8, 16}, {8, 4}},
      {"128B bf16 at 128", kBf16, 2, k128, {96, 40}, {64, 8}, {0, 0}, 128},
      {"128B bf16 at 640", kBf16, 2, k128, {96, 40}, {64, 8}, {0, 0}, 640},
      {"64B bf16 at 128", kBf16, 2, k64, {96, 40}, {32, 8}, {0, 0}, 128},
      {"32B bf16 at 384", kBf16, 2, k32, {96, 40}, {16, 8}, {0, 0}, 384},
      {"none bf16 at 128", kBf16, 2, kNone, {96, 40}, {16, 8}, {0, 0}, 128},
      {"128B bf16 before the start", kBf16, 2, k128, {96, 40}, {64, 8}, {-5, -3}},
      {"128B bf16 past the end", kBf16, 2, k128, {96, 40}, {64, 8}, {70, 36}},
      {"128B bf16 wholly outside", kBf16, 2, k128, {96, 40}, {64, 8}, {0, 40}},
      {"128B bf16 far before the start", kBf16, 2, k128, {96, 40}, {64, 8}, {-64, 0}},
      {"128B bf16 wider than the tensor", kBf16, 2, k128, {24, 12}, {64, 16}, {0, 0}},
      {"none u32 past the end", kU32, 4, kNone, {48, 24}, {16, 8}, {41, 20}},
      {"128B bf16 unaligned, inside", kBf16, 2, k128, {96, 40}, {64, 8}, {5, 4}},
      {"128B bf16 unaligned by 8 bytes, inside", kBf16, 2, k128, {96, 40}, {64, 8}, {4, 4}},
      {"none bf16 unaligned, inside", kBf16, 2, kNone, {96, 40}, {64, 8}, {5, 4}},
      {"none u32 unaligned, inside", kU32, 4, kNone, {48, 24}, {16, 8}, {3, 2}},
      {"1d bf16 unaligned, inside", kBf16, 2, kNone, {512}, {64}, {3}},
      {"128B bf16 outside in both", kBf16, 2, k128, {93, 40}, {64, 8}, {72, 36}, 0, 96},
      {"128B bf16 outside before both", kBf16, 2, k128, {96, 40}, {64, 8}, {-8, -3}},
      {"64B bf16 outside in both", kBf16, 2, k64, {93, 40}, {32, 8}, {72, 36}, 0, 96},
      {"32B bf16 outside in both", kBf16, 2, k32, {93, 40}, {16, 8}, {80, 36}, 0, 96},
      {"none bf16 outside in both", kBf16, 2, kNone, {93, 40}, {32, 8}, {72, 36}, 0, 96},
      {"none u32 outside in both", kU32, 4, kNone, {45, 24}, {16, 8}, {40, 20}, 0, 48},
      {"1d bf16", kBf16, 2, kNone, {512}, {64}, {480}},
      {"3d bf16 128B", kBf16, 2, k128, {72, 10, 5}, {64, 6, 3}, {8, 2, 1}},
      {"3d bf16 32B", kBf16, 2, k32, {72, 10, 5}, {16, 5, 3}, {8, 2, 1}},
      {"3d bf16 128B outside in the middle", kBf16, 2, k128, {72, 10, 5}, {64, 6, 3}, {16, 7, -1}},
      {"3d u32 64B outside at the end", kU32, 4, k64, {20, 10, 5}, {16, 6, 3}, {8, -2, 3}},
      {"4d bf16 64B", kBf16, 2, k64, {40, 6, 4, 3}, {32, 3, 2, 2}, {8, 4, 1, 1}},
      {"5d bf16 none", kBf16, 2, kNone, {24, 3, 4, 3, 2}, {16, 2, 2, 2, 2}, {8, 1, 3, 1, 0}},
  };
  std::vector<Object> objects;
  for (const TmaCase& c : cases) objects.push_back(Isolated(MeasureLoad, Describe(c), c));
  return objects;
}

inline std::vector<Object> MeasureTmaStores() {
  constexpr auto kBf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  constexpr auto kU32 = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  constexpr auto kNone = CU_TENSOR_MAP_SWIZZLE_NONE;
  constexpr auto k32 = CU_TENSOR_MAP_SWIZZLE_32B;
  constexpr auto k64 = CU_TENSOR_MAP_SWIZZLE_64B;
  constexpr auto k128 = CU_TENSOR_MAP_SWIZZLE_128B;
  const std::vector<TmaCase> cases = {
      {"none bf16", kBf16, 2, kNone, {64, 12}, {32, 8}, {8, 2}},
      {"32B bf16", kBf16, 2, k32, {64, 12}, {16, 8}, {8, 2}},
      {"64B bf16", kBf16, 2, k64, {64, 12}, {32, 8}, {8, 2}},
      {"128B bf16", kBf16, 2, k128, {72, 12}, {64, 8}, {8, 2}},
      {"128B bf16 at 384", kBf16, 2, k128, {72, 12}, {64, 8}, {8, 2}, 384},
      {"128B bf16 unaligned, outside", kBf16, 2, k128, {72, 12}, {64, 8}, {-3, 8}},
      {"128B u32 unaligned, outside", kU32, 4, k128, {36, 12}, {32, 8}, {7, -2}},
      {"3d bf16 128B unaligned, outside", kBf16, 2, k128, {72, 4, 3}, {64, 3, 2}, {9, 2, 2}},
      {"128B bf16 unaligned, inside", kBf16, 2, k128, {72, 12}, {64, 8}, {5, 2}},
      {"none u32 unaligned, inside", kU32, 4, kNone, {48, 12}, {16, 8}, {3, 2}},
      {"none bf16 outside in both", kBf16, 2, kNone, {61, 12}, {32, 8}, {40, 8}, 0, 64},
      {"32B bf16 outside in both", kBf16, 2, k32, {61, 12}, {16, 8}, {48, 8}, 0, 64},
      {"64B bf16 outside in both", kBf16, 2, k64, {61, 12}, {32, 8}, {40, 8}, 0, 64},
      {"128B bf16 outside in both", kBf16, 2, k128, {69, 12}, {64, 8}, {16, 8}, 0, 72},
      {"128B bf16 outside before both", kBf16, 2, k128, {72, 12}, {64, 8}, {-8, -3}},
      {"128B bf16 wholly outside", kBf16, 2, k128, {72, 12}, {64, 8}, {0, 12}},
      {"128B u32 outside in both", kU32, 4, k128, {33, 12}, {32, 8}, {8, -2}, 0, 36},
      {"3d bf16 128B outside", kBf16, 2, k128, {72, 4, 3}, {64, 3, 2}, {16, 2, 2}},
      {"128B bf16 inner box of half a span", kBf16, 2, k128, {72, 12}, {32, 8}, {8, 2}},
  };
  std::vector<Object> objects;
  for (const TmaCase& c : cases) objects.push_back(Isolated(MeasureStore, Describe(c), c));
  return objects;
}

}  // namespace jax_symm::hardware_tables

#endif  // JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_TMA_CUH_

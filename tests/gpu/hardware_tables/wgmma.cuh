// Which shared-memory slot, thread and register each element of a wgmma operand or result has.
//
// Every 16-bit slot of the operand under test holds its own index, first the low byte and then the
// high byte as a bfloat16 (exact up to 256); the other operand is an identity, so the accumulators
// come out as slot indices with no rounding.
#ifndef JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_WGMMA_CUH_
#define JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_WGMMA_CUH_

#include <cuda_bf16.h>

#include <vector>

#include "device.cuh"
#include "json.h"

namespace jax_symm::hardware_tables {

constexpr int kImageSlots = 24576;    // the operand under test: 48 KiB
constexpr int kIdentitySlots = 1024;  // the other operand, at most 64 x 16
constexpr int kSharedSlots = kImageSlots + kIdentitySlots;
constexpr int kWarpgroup = 128;

#define JAX_SYMM_LIST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define JAX_SYMM_LIST32                                                                 \
  JAX_SYMM_LIST8                                                                        \
  ",%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
  "%29,%30,%31"
#define JAX_SYMM_LIST64                                                                   \
  JAX_SYMM_LIST32                                                                         \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
  "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define JAX_SYMM_LIST128                                                                  \
  JAX_SYMM_LIST64                                                                         \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84," \
  "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104," \
  "%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121," \
  "%122,%123,%124,%125,%126,%127"
#define JAX_SYMM_D8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define JAX_SYMM_D32(i) JAX_SYMM_D8(i), JAX_SYMM_D8(i + 8), JAX_SYMM_D8(i + 16), JAX_SYMM_D8(i + 24)
#define JAX_SYMM_D64(i) JAX_SYMM_D32(i), JAX_SYMM_D32(i + 32)
#define JAX_SYMM_D128(i) JAX_SYMM_D64(i), JAX_SYMM_D64(i + 64)
#define JAX_SYMM_WGMMA(N, LIST, A, B, TA, TB, ...)                                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" LIST "}, " A ", " B \
               ", 1, 1, 1, " TA ", " TB ";"                                                    \
               : __VA_ARGS__                                                                   \
               : "l"(a), "l"(b), "n"(kTransposeA), "n"(kTransposeB))

template <int kN, int kTransposeA, int kTransposeB>
__device__ void Multiply(float (&d)[kN / 2], uint64_t a, uint64_t b) {
  if constexpr (kN == 16) {
    JAX_SYMM_WGMMA("16", JAX_SYMM_LIST8, "%8", "%9", "%10", "%11", JAX_SYMM_D8(0));
  } else if constexpr (kN == 64) {
    JAX_SYMM_WGMMA("64", JAX_SYMM_LIST32, "%32", "%33", "%34", "%35", JAX_SYMM_D32(0));
  } else if constexpr (kN == 128) {
    JAX_SYMM_WGMMA("128", JAX_SYMM_LIST64, "%64", "%65", "%66", "%67", JAX_SYMM_D64(0));
  } else {
    static_assert(kN == 256);
    JAX_SYMM_WGMMA("256", JAX_SYMM_LIST128, "%128", "%129", "%130", "%131", JAX_SYMM_D128(0));
  }
}

__device__ inline void MultiplyFromRegisters(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" JAX_SYMM_LIST8
               "}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
               : JAX_SYMM_D8(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ inline void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void WgmmaDrain() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Descriptor fields other than the address; the kernel adds its shared address / 16.
struct OperandDescriptor {
  uint64_t bits;
  uint32_t offset_bytes;  // of the operand in the shared image
};

inline OperandDescriptor MakeDescriptor(uint32_t offset_bytes, uint64_t leading_bytes,
                                        uint64_t stride_bytes, uint64_t swizzle) {
  return {(leading_bytes >> 4) << 16 | (stride_bytes >> 4) << 32 | swizzle << 62, offset_bytes};
}

__device__ inline uint64_t Place(const OperandDescriptor& descriptor, uint32_t image) {
  return descriptor.bits | (((image + descriptor.offset_bytes) & 0x3ffff) >> 4);
}

// `shared` is the whole shared image; `result` gets kN / 2 registers of each thread.
template <int kN, int kTransposeA, int kTransposeB>
__global__ void WgmmaKernel(const uint16_t* shared, OperandDescriptor a, OperandDescriptor b,
                            float* result, uint32_t* image_base) {
  extern __shared__ uint8_t dynamic[];
  uint16_t* image = reinterpret_cast<uint16_t*>(AlignTo1024(dynamic));
  for (int i = threadIdx.x; i < kSharedSlots; i += kWarpgroup) image[i] = shared[i];
  FenceProxyAsync();
  __syncthreads();
  float d[kN / 2];
  for (int i = 0; i < kN / 2; ++i) d[i] = 0;
  const uint32_t base = SharedAddress(image);
  WgmmaFence();
  Multiply<kN, kTransposeA, kTransposeB>(d, Place(a, base), Place(b, base));
  WgmmaDrain();
  for (int i = 0; i < kN / 2; ++i) result[threadIdx.x * (kN / 2) + i] = d[i];
  if (threadIdx.x == 0) *image_base = base;
}

// A comes from registers: half h of register i of thread t holds byte (t * 8 + i * 2 + h) >> shift.
__global__ void WgmmaRegisterKernel(const uint16_t* shared, OperandDescriptor b, int shift,
                                    float* result) {
  extern __shared__ uint8_t dynamic[];
  uint16_t* image = reinterpret_cast<uint16_t*>(AlignTo1024(dynamic));
  for (int i = threadIdx.x; i < kSharedSlots; i += kWarpgroup) image[i] = shared[i];
  FenceProxyAsync();
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) {
    uint32_t halves[2];
    for (int h = 0; h < 2; ++h) {
      const uint32_t byte = (threadIdx.x * 8 + i * 2 + h) >> shift & 255;
      halves[h] = __bfloat16_as_ushort(__float2bfloat16_rn(byte));
    }
    a[i] = halves[0] | halves[1] << 16;
  }
  float d[8] = {};
  WgmmaFence();
  MultiplyFromRegisters(d, a, Place(b, SharedAddress(image)));
  WgmmaDrain();
  for (int i = 0; i < 8; ++i) result[threadIdx.x * 8 + i] = d[i];
}

inline uint16_t Bf16(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }

// Slot indices in the first part of the image, a rows x 16 identity in the second: no swizzle,
// K-major, 8 x 8 core matrices, adjacent ones in K 128 bytes and in rows 256 bytes apart.
inline std::vector<uint16_t> IndexedImage(int identity_rows, int shift) {
  std::vector<uint16_t> image(kSharedSlots, 0);
  for (int i = 0; i < kImageSlots; ++i) image[i] = Bf16(i >> shift & 255);
  for (int k = 0; k < 16 && k < identity_rows; ++k) {
    image[kImageSlots + k / 8 * 128 + k / 8 * 64 + k % 8 * 8 + k % 8] = Bf16(1);
  }
  return image;
}

inline OperandDescriptor IdentityDescriptor() {
  return MakeDescriptor(kImageSlots * 2, 128, 256, 0);
}

struct WgmmaCase {
  const char* name;
  bool measures_a;  // else B
  int n;
  bool mn_major;
  int swizzle;  // the descriptor field: 0 none, 1 128B, 2 64B, 3 32B
  uint32_t offset_bytes;
  int leading_bytes;
  int stride_bytes;
};

using WgmmaLauncher = void (*)(const uint16_t*, OperandDescriptor, OperandDescriptor, float*,
                               uint32_t*);

template <int kN, int kTransposeA, int kTransposeB>
void LaunchWgmma(const uint16_t* shared, OperandDescriptor a, OperandDescriptor b, float* result,
                 uint32_t* image_base) {
  constexpr int kBytes = kSharedSlots * 2 + 1024;
  auto* kernel = WgmmaKernel<kN, kTransposeA, kTransposeB>;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "smem");
  kernel<<<1, kWarpgroup, kBytes>>>(shared, a, b, result, image_base);
}

inline WgmmaLauncher FindLauncher(const WgmmaCase& c) {
  if (c.measures_a) return c.mn_major ? LaunchWgmma<16, 1, 0> : LaunchWgmma<16, 0, 0>;
  if (c.n == 64) return c.mn_major ? LaunchWgmma<64, 0, 1> : LaunchWgmma<64, 0, 0>;
  if (c.n == 128) return c.mn_major ? LaunchWgmma<128, 0, 1> : LaunchWgmma<128, 0, 0>;
  return c.mn_major ? LaunchWgmma<256, 0, 1> : LaunchWgmma<256, 0, 0>;
}

// Only the first 16 rows of the result depend on B when A is an identity: warp 0 holds them.
inline Object MeasureOperand(const WgmmaCase& c) {
  const OperandDescriptor tested =
      MakeDescriptor(c.offset_bytes, c.leading_bytes, c.stride_bytes, c.swizzle);
  const OperandDescriptor a = c.measures_a ? tested : IdentityDescriptor();
  const OperandDescriptor b = c.measures_a ? IdentityDescriptor() : tested;
  const int registers = c.n / 2, threads = c.measures_a ? kWarpgroup : 32;
  std::vector<uint16_t> slots(threads * registers, 0);
  uint64_t image_base = 0;
  for (int shift : {0, 8}) {
    DeviceArray<uint16_t> shared(IndexedImage(c.measures_a ? 16 : 64, shift));
    DeviceArray<float> result(std::vector<float>(kWarpgroup * registers, -1));
    DeviceArray<uint32_t> base(std::vector<uint32_t>(1));
    FindLauncher(c)(shared.get(), a, b, result.get(), base.get());
    const std::vector<float> values = result.Read();
    image_base = base.Read()[0];
    for (size_t i = 0; i < slots.size(); ++i) slots[i] += static_cast<int>(values[i]) << shift;
  }
  Object object;
  object.Add("name", c.name).Add("operand", c.measures_a ? "a" : "b").Add("n", c.n);
  object.Add("mn_major", c.mn_major).Add("image_base", image_base);
  object.Add("descriptor", tested.bits | (image_base + tested.offset_bytes) >> 4);
  object.Add("identity_offset", kImageSlots * 2).Add("threads", threads);
  return object.AddHex("slots", slots);
}

// D[m, n] = 256 m + n from A = [m, 1] and B = [256, n]: exact, and every value is different.
template <int kN>
Object MeasureAccumulator() {
  std::vector<uint16_t> image(kSharedSlots, 0);
  const int a = 0, b = 8192;  // slots; K-major, no swizzle, as the identity
  const auto slot = [](int row, int k) { return row / 8 * 128 + k / 8 * 64 + row % 8 * 8 + k % 8; };
  for (int m = 0; m < 64; ++m) {
    image[a + slot(m, 0)] = Bf16(m);
    image[a + slot(m, 1)] = Bf16(1);
  }
  for (int n = 0; n < kN; ++n) {
    image[b + slot(n, 0)] = Bf16(256);
    image[b + slot(n, 1)] = Bf16(n);
  }
  DeviceArray<uint16_t> shared(image);
  DeviceArray<float> result(std::vector<float>(kWarpgroup * kN / 2, -1));
  DeviceArray<uint32_t> base(std::vector<uint32_t>(1));
  LaunchWgmma<kN, 0, 0>(shared.get(), MakeDescriptor(a * 2, 128, 256, 0),
                        MakeDescriptor(b * 2, 128, 256, 0), result.get(), base.get());
  std::vector<uint16_t> positions;
  for (float value : result.Read()) positions.push_back(static_cast<int>(value));
  Object object;
  return object.Add("n", kN).AddHex("row_times_256_plus_column", positions);
}

inline Object MeasureARegisters() {
  constexpr int kBytes = kSharedSlots * 2 + 1024;
  Check(cudaFuncSetAttribute(WgmmaRegisterKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kBytes),
        "smem");
  DeviceArray<uint16_t> shared(IndexedImage(16, 0));
  std::vector<uint16_t> slots(kWarpgroup * 8, 0);
  for (int shift : {0, 8}) {
    DeviceArray<float> result(std::vector<float>(kWarpgroup * 8, -1));
    WgmmaRegisterKernel<<<1, kWarpgroup, kBytes>>>(shared.get(), IdentityDescriptor(), shift,
                                                   result.get());
    const std::vector<float> values = result.Read();
    for (size_t i = 0; i < slots.size(); ++i) slots[i] += static_cast<int>(values[i]) << shift;
  }
  Object object;
  return object.Add("n", 16).AddHex("thread_times_8_plus_half", slots);
}

inline std::vector<Object> MeasureWgmmaOperands() {
  const std::vector<WgmmaCase> cases = {
      {"A K-major none", true, 16, false, 0, 0, 128, 256},
      {"A K-major none, far in K", true, 16, false, 0, 512, 2048, 128},
      {"A K-major 32B", true, 16, false, 3, 0, 16, 256},
      {"A K-major 64B", true, 16, false, 2, 0, 16, 512},
      {"A K-major 64B, second k step", true, 16, false, 2, 32, 16, 512},
      {"A K-major 128B", true, 16, false, 1, 0, 16, 1024},
      {"A K-major 128B, second k step", true, 16, false, 1, 32, 16, 1024},
      {"A K-major 128B, fourth k step", true, 16, false, 1, 96, 16, 1024},
      {"A K-major 128B, spread", true, 16, false, 1, 1024, 16, 2048},
      {"A MN-major none", true, 16, true, 0, 0, 1280, 128},
      {"A MN-major none, other strides", true, 16, true, 0, 0, 128, 256},
      {"A MN-major 32B", true, 16, true, 3, 0, 1024, 256},
      {"A MN-major 64B", true, 16, true, 2, 0, 2048, 512},
      {"A MN-major 128B", true, 16, true, 1, 0, 4096, 1024},
      {"A MN-major 128B, spread", true, 16, true, 1, 2048, 1024, 8192},
      {"B K-major none", false, 64, false, 0, 0, 128, 256},
      {"B K-major 32B", false, 64, false, 3, 0, 16, 256},
      {"B K-major 64B, second k step", false, 64, false, 2, 32, 16, 512},
      {"B K-major 128B, third k step", false, 64, false, 1, 64, 16, 1024},
      {"B K-major 128B, n 256", false, 256, false, 1, 32, 16, 1024},
      {"B MN-major none", false, 64, true, 0, 0, 1280, 128},
      {"B MN-major 32B", false, 64, true, 3, 0, 1024, 256},
      {"B MN-major 64B", false, 64, true, 2, 0, 2048, 512},
      {"B MN-major 128B, n 128", false, 128, true, 1, 0, 8192, 1024},
      {"B MN-major 128B, n 256", false, 256, true, 1, 2048, 8192, 1024},
  };
  std::vector<Object> objects;
  for (const WgmmaCase& c : cases) objects.push_back(MeasureOperand(c));
  return objects;
}

}  // namespace jax_symm::hardware_tables

#endif  // JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_WGMMA_CUH_

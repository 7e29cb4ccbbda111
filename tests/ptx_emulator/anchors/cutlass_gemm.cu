// A CUTLASS bf16 GEMM, D = A * B (A m x k, B k x n, f32 accumulation, bf16 D row-major), as a
// third-party anchor of the emulator: its PTX is what nvcc keeps, and the program prints the launch
// as CUTLASS's own host code computes it, without a GPU and without libcuda.
//
// Macros: ARCH (90 or 100), TILE_M, TILE_N, CLUSTER_M, CLUSTER_N, TWO_SM (0 or 1, sm_100 only),
// MN_MAJOR (0: A row-major and B column-major, so K-major operands; 1: the opposite).
#define CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL 1
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cutlass/cutlass.h"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

namespace {

using cute::Int;
using cute::Shape;
using Element = cutlass::bfloat16_t;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
using Tile = Shape<Int<TILE_M>, Int<TILE_N>, cute::_64>;
using ClusterShape = Shape<Int<CLUSTER_M>, Int<CLUSTER_N>, cute::_1>;
constexpr int kAlignment = 8;  // elements: 16 bytes

#if MN_MAJOR
using LayoutA = ColumnMajor;
using LayoutB = RowMajor;
#else
using LayoutA = RowMajor;
using LayoutB = ColumnMajor;
#endif

#if ARCH == 90
using Arch = cutlass::arch::Sm90;
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecializedCooperative;
#elif TWO_SM
using Arch = cutlass::arch::Sm100;
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecialized2SmSm100;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized2Sm;
#else
using Arch = cutlass::arch::Sm100;
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecialized1SmSm100;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized1Sm;
#endif

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    Arch, cutlass::arch::OpClassTensorOp, Tile, ClusterShape,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, kAlignment,
    Element, RowMajor, kAlignment, EpilogueSchedule>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    Arch, cutlass::arch::OpClassTensorOp, Element, LayoutA, kAlignment, Element, LayoutB,
    kAlignment, float, Tile, ClusterShape,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    MainloopSchedule>::CollectiveOp;

}  // namespace

using Gemm = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;

template __global__ void cutlass::device_kernel<Gemm>(CUTLASS_GRID_CONSTANT Gemm::Params const);

// Stands in for the driver: prints the request and leaves its number in the map.
extern "C" CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  static int requests = 0;
  std::memset(map, 0, sizeof(*map));
  std::snprintf(reinterpret_cast<char*>(map), sizeof(*map), "tensor map %d", requests++);
  std::fprintf(stderr, "tensor_map %d %u %llu %d %d %d", static_cast<int>(type), rank,
               reinterpret_cast<unsigned long long>(address), static_cast<int>(interleave),
               static_cast<int>(swizzle), static_cast<int>(fill));
  const auto print = [](const auto* values, cuuint32_t size) {
    for (cuuint32_t i = 0; i < size; ++i) {
      std::fprintf(stderr, " %llu", static_cast<unsigned long long>(values[i]));
    }
  };
  print(dims, rank);
  print(strides, rank - 1);
  print(box, rank);
  print(element_strides, rank);
  std::fprintf(stderr, "\n");
  return CUDA_SUCCESS;
}

// Usage: M N K A B D SM_COUNT (device addresses). Parameters go to stdout, the rest to stderr.
int main(int argc, char** argv) {
  if (argc != 8) return 2;
  const int m = std::atoi(argv[1]), n = std::atoi(argv[2]), k = std::atoi(argv[3]);
  const auto pointer = [&](int i) {
    return reinterpret_cast<Element*>(std::strtoull(argv[i], nullptr, 0));
  };
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = 0;
  hardware.sm_count = std::atoi(argv[7]);
  hardware.max_active_clusters = hardware.sm_count / (CLUSTER_M * CLUSTER_N);
  hardware.cluster_shape = dim3(CLUSTER_M, CLUSTER_N, 1);
  hardware.cluster_shape_fallback = hardware.cluster_shape;
  const auto a = cutlass::make_cute_packed_stride(typename Gemm::StrideA{}, {m, k, 1});
  const auto b = cutlass::make_cute_packed_stride(typename Gemm::StrideB{}, {n, k, 1});
  const auto d = cutlass::make_cute_packed_stride(typename Gemm::StrideD{}, {m, n, 1});
  typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                     {m, n, k, 1},
                                     {pointer(4), a, pointer(5), b},
                                     {{1.f, 0.f}, nullptr, d, pointer(6), d},
                                     hardware};
  const auto params = Gemm::to_underlying_arguments(arguments, nullptr);
  const dim3 grid = Gemm::get_grid_shape(params), block = Gemm::get_block_shape();
  std::fprintf(stderr, "launch %u %u %u %u %u %u %d %d %d\n", grid.x, grid.y, grid.z, block.x,
               block.y, block.z, CLUSTER_M, CLUSTER_N, static_cast<int>(Gemm::SharedStorageSize));
  std::fwrite(&params, 1, sizeof(params), stdout);
  return 0;
}

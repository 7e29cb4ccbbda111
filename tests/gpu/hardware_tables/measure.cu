// Measures on a Hopper GPU the data mappings that the PTX emulator models; prints JSON.
//
//   nvcc -std=c++20 -gencode=arch=compute_90a,code=sm_90a -o measure measure.cu
//   ./measure > measured.json
#include <cstdio>

#include "barrier.cuh"
#include "cluster.cuh"
#include "json.h"
#include "tma.cuh"
#include "wgmma.cuh"

namespace jax_symm::hardware_tables {

void PrintDevice() {
  cudaDeviceProp device;
  int driver = 0;
  Check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  Check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  Object object;
  object.Add("name", device.name).Add("capability", device.major * 10 + device.minor);
  object.Add("cuda_driver", driver).Add("cuda_toolkit", CUDART_VERSION);
  std::printf("\"device\": %s,\n", object.Text().c_str());
}

void Run() {
  std::printf("{\n");
  PrintSection("tma_load", MeasureTmaLoads(), false);
  PrintSection("tma_store", MeasureTmaStores(), false);
  PrintDevice();
  PrintSection("tma_multicast", MeasureMulticasts(), false);
  PrintSection("mbarrier", MeasureBarriers(), false);
  PrintSection("stmatrix", MeasureStmatrix(), false);
  PrintSection("wgmma_accumulator",
               {MeasureAccumulator<16>(), MeasureAccumulator<64>(), MeasureAccumulator<256>()},
               false);
  PrintSection("wgmma_a_registers", {MeasureARegisters()}, false);
  PrintSection("wgmma_operand", MeasureWgmmaOperands(), true);
  std::printf("}\n");
}

}  // namespace jax_symm::hardware_tables

int main() {
  jax_symm::hardware_tables::Run();
  return 0;
}

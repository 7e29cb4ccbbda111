// Reads fault records while launches run, as a host does: the verdict first, then what it covers.
#include <cstdint>

#include "kernels/layout/fault.h"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/time.cuh"

extern "C" __global__ void host_reader(const jax_symm::LaunchRecord* const* records, uint32_t count,
                                       jax_symm::LaunchRecord* copies) {
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t verdict;
    while ((verdict = jax_symm::ptx::LoadAcquireSys(&records[i]->verdict)) == 0) {
      jax_symm::ptx::NanoSleep(1000);
    }
    copies[i] = {verdict, records[i]->observation};
  }
}

// The inner loop of sum.cc, compiled once per instruction set (sum_kernel.cc). No header with
// inline functions may be included here or there: the linker would be free to keep the copy that
// was compiled for the widest instruction set.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace jax_symm {

struct SumKernelArgs {
  const void* const* sources;
  size_t num_sources;
  void* const* outputs;
  size_t num_outputs;
  int64_t source_offset;  // in elements, as are the next two
  int64_t output_offset;
  int64_t count;
  bool stream;  // write around the cache
};

using SumKernel = void (*)(const SumKernelArgs& args);

/// Indexed by the values of ElementType: [in][out]; null where that pair is not supported.
struct SumKernelTable {
  SumKernel kernels[3][3];
};

// One for each instruction set that ffi/CMakeLists.txt compiles for.
extern const SumKernelTable kSumKernelsGeneric;
extern const SumKernelTable kSumKernelsAvx2;
extern const SumKernelTable kSumKernelsAvx512;

/// The tables that this processor can run, the fastest first.
std::vector<const SumKernelTable*> RunnableSumKernels();

}  // namespace jax_symm

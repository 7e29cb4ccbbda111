#include "runtime/sum.h"

#include "runtime/float_mode.h"
#include "runtime/sum_kernel.h"

namespace jax_symm {
namespace {

const SumKernelTable& Table() {
#if defined(__x86_64__)
  static const SumKernelTable& table = []() -> const SumKernelTable& {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      return kSumKernelsAvx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return kSumKernelsAvx2;
    return kSumKernelsGeneric;
  }();
  return table;
#else
  return kSumKernelsGeneric;
#endif
}

SumKernel Kernel(ElementType in, ElementType out) {
  return Table().kernels[static_cast<int>(in)][static_cast<int>(out)];
}

}  // namespace

bool CanSum(ElementType in, ElementType out) { return Kernel(in, out) != nullptr; }

void Sum(const SumArgs& args) {
  const ScopedFloatMode mode(FloatMode::kIeee);
  Kernel(args.in, args.out)({
      .sources = args.sources.data(),
      .num_sources = args.sources.size(),
      .outputs = args.outputs.data(),
      .num_outputs = args.outputs.size(),
      .source_offset = args.source_offset,
      .output_offset = args.output_offset,
      .count = args.count,
      .stream = args.stream,
  });
}

}  // namespace jax_symm

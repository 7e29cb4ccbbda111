#include "runtime/sum.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "runtime/float_mode.h"
#include "runtime/sum_kernel.h"

namespace jax_symm {
namespace {

#if defined(__x86_64__)
bool HasF16c() {  // not all compilers know it by name
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() { return __builtin_cpu_supports("avx2") && HasF16c(); }

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const SumKernelTable& BestTable() {
  static const SumKernelTable& table = *RunnableSumKernels().front();
  return table;
}

SumKernel Kernel(ElementType in, ElementType out) {
  return BestTable().kernels[static_cast<int>(in)][static_cast<int>(out)];
}

}  // namespace

std::vector<const SumKernelTable*> RunnableSumKernels() {
  std::vector<const SumKernelTable*> tables;
#if defined(__x86_64__)
  if (HasAvx512()) tables.push_back(&kSumKernelsAvx512);
  if (HasAvx2()) tables.push_back(&kSumKernelsAvx2);
#endif
  tables.push_back(&kSumKernelsGeneric);
  return tables;
}

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

// When an mbarrier's phase completes, and which 16-bit slot stmatrix gives each register half.
#ifndef JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_BARRIER_CUH_
#define JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_BARRIER_CUH_

#include <string>
#include <utility>
#include <vector>

#include "device.cuh"
#include "json.h"

namespace jax_symm::hardware_tables {

enum BarrierOp { kArrive, kArriveExpectTx, kExpectTx, kCompleteTx, kArriveDrop };

constexpr const char* kBarrierOps[] = {"arrive", "arrive_expect_tx", "expect_tx", "complete_tx",
                                       "arrive_drop"};

struct BarrierStep {
  int op;
  int argument;
};

__device__ inline void Apply(uint64_t* barrier, BarrierStep step) {
  const uint32_t address = SharedAddress(barrier);
  switch (step.op) {
    case kArrive:
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(step.argument)
                   : "memory");
      break;
    case kArriveExpectTx:
      BarrierArriveExpectTx(barrier, step.argument);
      break;
    case kExpectTx:
      asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address),
                   "r"(step.argument)
                   : "memory");
      break;
    case kCompleteTx:
      asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address),
                   "r"(step.argument)
                   : "memory");
      break;
    default:
      asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0], %1;" ::"r"(address),
                   "r"(step.argument)
                   : "memory");
  }
}

// One thread applies the steps; after each (and after init) it records both parity tests.
__global__ void BarrierKernel(int count, const BarrierStep* steps, int size, uint32_t* seen) {
  __shared__ alignas(8) uint64_t barrier;
  BarrierInit(&barrier, count);
  for (int i = 0; i <= size; ++i) {
    if (i > 0) Apply(&barrier, steps[i - 1]);
    seen[i] = BarrierTestParity(&barrier, 0) | BarrierTestParity(&barrier, 1) << 1;
  }
}

struct BarrierCase {
  const char* name;
  int count;
  std::vector<BarrierStep> steps;
};

inline Object MeasureBarrier(const BarrierCase& c) {
  DeviceArray<BarrierStep> steps(c.steps);
  DeviceArray<uint32_t> seen(std::vector<uint32_t>(c.steps.size() + 1));
  BarrierKernel<<<1, 1>>>(c.count, steps.get(), c.steps.size(), seen.get());
  std::vector<int> arguments, parity0, parity1;
  std::string ops;
  for (const BarrierStep& step : c.steps) {
    ops += (ops.empty() ? "" : " ") + std::string(kBarrierOps[step.op]);
    arguments.push_back(step.argument);
  }
  for (uint32_t bits : seen.Read()) {
    parity0.push_back(bits & 1);
    parity1.push_back(bits >> 1);
  }
  Object object;
  object.Add("name", c.name).Add("count", c.count).Add("ops", ops).Add("arguments", arguments);
  return object.Add("parity0", parity0).Add("parity1", parity1);
}

inline std::vector<Object> MeasureBarriers() {
  const std::vector<BarrierCase> cases = {
      {"arrivals only", 2, {{kArrive, 1}, {kArrive, 1}, {kArrive, 2}, {kArrive, 1}}},
      {"transaction after the arrival", 1, {{kArriveExpectTx, 64}, {kCompleteTx, 64}}},
      {"transaction in two parts",
       1,
       {{kArriveExpectTx, 96}, {kCompleteTx, 32}, {kCompleteTx, 64}}},
      {"completion before the expectation", 1, {{kCompleteTx, 64}, {kArriveExpectTx, 64}}},
      {"completion before it, two phases",
       1,
       {{kCompleteTx, 64}, {kArriveExpectTx, 64}, {kCompleteTx, 16}, {kArriveExpectTx, 16}}},
      {"expectation apart from the arrival", 1, {{kExpectTx, 64}, {kArrive, 1}, {kCompleteTx, 64}}},
      {"transactions done while arrivals are pending",
       2,
       {{kArriveExpectTx, 64}, {kCompleteTx, 64}, {kArrive, 1}}},
      {"part of the completion before the expectation",
       2,
       {{kCompleteTx, 16}, {kArrive, 1}, {kArriveExpectTx, 48}, {kCompleteTx, 32}}},
      {"expectation and completion cancel, no arrival",
       1,
       {{kExpectTx, 32}, {kCompleteTx, 32}, {kArrive, 1}, {kArrive, 1}}},
      {"several expectations",
       3,
       {{kArriveExpectTx, 16}, {kArriveExpectTx, 32}, {kArriveExpectTx, 48}, {kCompleteTx, 96}}},
      {"expectation of zero", 1, {{kArriveExpectTx, 0}, {kArriveExpectTx, 0}}},
      {"dropped arrival lowers later counts",
       3,
       {{kArriveDrop, 1}, {kArrive, 2}, {kArrive, 1}, {kArrive, 1}, {kArrive, 2}}},
  };
  std::vector<Object> objects;
  for (const BarrierCase& c : cases) objects.push_back(MeasureBarrier(c));
  return objects;
}

// Lane l stores to 16-byte row l; half h of register i of lane l holds l * 8 + i * 2 + h + 1.
template <bool kTranspose>
__global__ void StmatrixKernel(int matrices, uint16_t* out) {
  __shared__ alignas(16) uint16_t rows[32 * 8];
  const uint32_t lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) rows[lane * 8 + i] = 0;
  __syncwarp();
  uint32_t r[4];
  for (uint32_t i = 0; i < 4; ++i) {
    r[i] = (lane * 8 + i * 2 + 1) | (lane * 8 + i * 2 + 2) << 16;
  }
  const uint32_t row = SharedAddress(&rows[lane * 8]);
#define JAX_SYMM_STMATRIX(FORM, LIST, ...)                                                    \
  if constexpr (kTranspose) {                                                                 \
    asm volatile("stmatrix.sync.aligned.m8n8." FORM ".trans.shared.b16 [%0], " LIST           \
                 ";" ::"r"(row),                                                              \
                 __VA_ARGS__                                                                  \
                 : "memory");                                                                 \
  } else {                                                                                    \
    asm volatile("stmatrix.sync.aligned.m8n8." FORM ".shared.b16 [%0], " LIST ";" ::"r"(row), \
                 __VA_ARGS__                                                                  \
                 : "memory");                                                                 \
  }
  if (matrices == 1) {
    JAX_SYMM_STMATRIX("x1", "{%1}", "r"(r[0]));
  } else if (matrices == 2) {
    JAX_SYMM_STMATRIX("x2", "{%1, %2}", "r"(r[0]), "r"(r[1]));
  } else {
    JAX_SYMM_STMATRIX("x4", "{%1, %2, %3, %4}", "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]));
  }
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = rows[lane * 8 + i];
}

inline std::vector<Object> MeasureStmatrix() {
  std::vector<Object> objects;
  for (int matrices : {1, 2, 4}) {
    for (bool transpose : {false, true}) {
      DeviceArray<uint16_t> out(std::vector<uint16_t>(32 * 8));
      auto* kernel = transpose ? StmatrixKernel<true> : StmatrixKernel<false>;
      kernel<<<1, 32>>>(matrices, out.get());
      Object object;
      object.Add("matrices", matrices).Add("transpose", transpose);
      objects.push_back(object.AddHex("rows", out.Read()));
    }
  }
  return objects;
}

}  // namespace jax_symm::hardware_tables

#endif  // JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_BARRIER_CUH_

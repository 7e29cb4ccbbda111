// Workspaces on GPUs, the choice of path and configuration, and the FFI targets of the CUDA paths.
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/config_choice.h"
#include "dispatch/cost_model.h"
#include "dispatch/cuda_workspace.h"
#include "kernels/embedded_images.h"
#include "memory/cuda_backend.h"
#include "python/bindings.h"
#include "python/ffi_capsules.h"
#include "python/native_workspace.h"
#include "xla/cuda_handlers.h"

namespace jax_symm {
namespace {

using PyMapping = Held<Mapping>;

using NativeCudaWorkspace = NativeWorkspace<CudaWorkspace>;

CudaLocalRank MakeLocalRank(int device_ordinal, int group, int rank,
                            const std::vector<PyMapping*>& mappings, uint64_t multicast_address) {
  CudaLocalRank local{device_ordinal, group, rank, {}, {multicast_address}};
  for (const PyMapping* mapping : mappings) local.mappings.push_back(mapping->get());
  return local;
}

std::unique_ptr<NativeCudaWorkspace> OpenWorkspace(
    CudaBackend& backend, std::string name, int64_t nonce, int64_t timeout_ns, int world_size,
    uint64_t capacity_bytes, bool all_reduce, std::string axis,
    std::vector<std::vector<std::string>> rank_labels, std::vector<CudaLocalRank> locals,
    uint32_t sm_margin) {
  auto options = MakeWorkspaceOptions<CudaWorkspaceOptions>(
      std::move(name), nonce, timeout_ns, world_size, capacity_bytes, all_reduce, std::move(axis),
      std::move(rank_labels), std::move(locals));
  options.sm_margin = sm_margin;
  return std::make_unique<NativeCudaWorkspace>(
      ValueOrThrow(CudaWorkspace::Open(backend.shared_api(), std::move(options))));
}

ElementType ElementOf(const std::string& name) {
  if (name == "bfloat16") return ElementType::kBf16;
  if (name == "float16") return ElementType::kF16;
  return ElementType::kF32;
}

GemmProblem MakeProblem(const std::string& op, const std::string& dtype,
                        const std::string& out_dtype, const std::string& w_layout, uint32_t ranks,
                        uint32_t batch, uint32_t rows, uint32_t shard_rows, uint32_t n,
                        uint32_t k) {
  return {.collective = op == "all_reduce" ? Collective::kAllReduce : Collective::kReduceScatter,
          .element = ElementOf(dtype),
          .output = ElementOf(out_dtype),
          .weights = w_layout == "nk" ? WeightLayout::kNK : WeightLayout::kKN,
          .rows = {batch, rows, shard_rows},
          .ranks = ranks,
          .n = n,
          .k = k};
}

StatusOr<Reducer> ReducerNamed(const std::string& name) {
  for (Reducer reducer : {Reducer::kPush, Reducer::kPull, Reducer::kMulticast}) {
    if (name == ReducerName(reducer)) return reducer;
  }
  return InvalidArgument("reducer: got '", name, "', expected push, pull or multicast");
}

/// One call of one rank, as a program of XLA would make it, on a stream of the caller's.
void Submit(const NativeCudaWorkspace& workspace, int device_ordinal, const GemmProblem& problem,
            const std::string& reducer, uint64_t x, uint64_t w, uint64_t output,
            uint64_t axis_index, uint32_t call, uint64_t stream) {
  const std::string unsupported = WhyNotSupported(problem);
  if (!unsupported.empty()) throw StatusError(Unimplemented(Describe(problem), ": ", unsupported));
  ThrowIfError(workspace.get().Submit(device_ordinal, problem.ranks, /*site=*/0,
                                      {.problem = problem,
                                       .reducer = ValueOrThrow(ReducerNamed(reducer)),
                                       .buffers = {x, w, output, axis_index},
                                       .call = static_cast<uint32_t>(call & kCallMask)},
                                      reinterpret_cast<driver::Stream>(stream)));
}

void BindWorkspace(nb::module_& module) {
  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<CudaLocalRank>(module, "CudaLocalRank", "A rank of this process, on a GPU.")
      .def(nb::new_(&MakeLocalRank), nb::arg("device_ordinal"), nb::arg("group"), nb::arg("rank"),
           nb::arg("mappings"), nb::arg("multicast_address") = 0);
  nb::class_<GemmProblem>(module, "GemmProblem", "One fused call: shapes and types.")
      .def(nb::new_(&MakeProblem), nb::arg("op"), nb::arg("dtype"), nb::arg("out_dtype"),
           nb::arg("w_layout"), nb::arg("ranks"), nb::arg("batch"), nb::arg("rows"),
           nb::arg("shard_rows"), nb::arg("n"), nb::arg("k"));
  BindNativeWorkspace<CudaWorkspace>(module, "NativeCudaWorkspace", "An open workspace on GPUs.")
      .def("submit", &Submit, nb::arg("device_ordinal"), nb::arg("problem"), nb::arg("reducer"),
           nb::arg("x"), nb::arg("w"), nb::arg("output"), nb::arg("axis_index"), nb::arg("call"),
           nb::arg("stream"), NoGil(),
           "Enqueues one call on a stream, without XLA: for tests and benchmarks whose ranks share "
           "a GPU. Buffers are device addresses; axis_index is that of an int32.");
  module.def("open_cuda_workspace", &OpenWorkspace, nb::arg("backend"), nb::arg("name"),
             nb::arg("nonce"), nb::arg("timeout_ns"), nb::arg("world_size"),
             nb::arg("capacity_bytes"), nb::arg("all_reduce"), nb::arg("axis"),
             nb::arg("rank_labels"), nb::arg("locals"), nb::arg("sm_margin") = 0, NoGil(),
             "Loads the kernels and makes the workspace's name known to programs.");
  module.def(
      "cuda_workspace_nbytes",
      [](int world_size, uint64_t capacity_bytes, bool all_reduce) {
        return ValueOrThrow(CudaWorkspaceBytes(world_size, capacity_bytes, all_reduce));
      },
      nb::arg("world_size"), nb::arg("capacity_bytes"), nb::arg("all_reduce"),
      "Bytes of symmetric memory that a workspace needs per rank.");
}

Reducer ReducerOf(const std::string& path, const GemmProblem& problem, bool multicast) {
  if (path == "peer") return Reducer::kPush;
  if (path == "peer_pull") return Reducer::kPull;
  return path == "multicast" ? Reducer::kMulticast : ChooseReducer(problem, multicast);
}

nb::dict PlanCall(Arch arch, const GemmProblem& problem, Reducer reducer, uint64_t capacity_bytes,
                  uint32_t multiprocessors) {
  const DeviceRates rates = RatesOf(arch);
  const Advice advice = Advise(problem, reducer, rates);
  nb::dict plan;
  plan["can_run"] = advice.can_run;
  plan["should_run"] = advice.should_run;
  plan["reason"] = advice.reason;
  if (!advice.can_run) return plan;
  const GemmConfig config = ChooseConfig(arch, problem, reducer, multiprocessors);
  const bool all_reduce = problem.collective == Collective::kAllReduce;
  const std::string misfit =
      WhyNotFitting(problem, config, CapacityFor(problem.ranks, capacity_bytes, all_reduce));
  if (!misfit.empty()) {
    plan["can_run"] = false;
    plan["reason"] = misfit;
  }
  plan["path"] = reducer == Reducer::kMulticast ? "multicast" : "peer";
  nb::dict settings;
  settings["kernel"] = KernelName(problem, config);
  settings["tile"] = Describe(config);
  settings["gemm_us"] = EstimateFused(problem, reducer, rates).gemm_seconds * 1e6;
  settings["link_us"] = EstimateFused(problem, reducer, rates).link_seconds * 1e6;
  plan["config"] = settings;
  return plan;
}

std::vector<std::string> KernelArchitectures() {
  std::vector<std::string> names;
  for (const EmbeddedImage& image : EmbeddedImages()) {
    const std::string arch(image.name.substr(0, image.name.find('_')));
    if (names.empty() || names.back() != arch) names.push_back(arch);
  }
  return names;
}

}  // namespace

void BindCudaRuntime(nb::module_& module) {
  BindWorkspace(module);
  module.def(
      "plan_cuda_call",
      [](const std::string& architecture, const std::string& op, const std::string& dtype,
         const std::string& out_dtype, const std::string& w_layout, uint32_t ranks, uint32_t batch,
         uint32_t rows, uint32_t shard_rows, uint32_t n, uint32_t k, bool multicast,
         uint64_t capacity_bytes, uint32_t multiprocessors, const std::string& path) {
        const GemmProblem problem =
            MakeProblem(op, dtype, out_dtype, w_layout, ranks, batch, rows, shard_rows, n, k);
        return PlanCall(ValueOrThrow(ArchNamed(architecture)), problem,
                        ReducerOf(path, problem, multicast), capacity_bytes, multiprocessors);
      },
      nb::arg("architecture"), nb::arg("op"), nb::arg("dtype"), nb::arg("out_dtype"),
      nb::arg("w_layout"), nb::arg("ranks"), nb::arg("batch"), nb::arg("rows"),
      nb::arg("shard_rows"), nb::arg("n"), nb::arg("k"), nb::arg("multicast"),
      nb::arg("capacity_bytes"), nb::arg("multiprocessors"), nb::arg("path") = "auto",
      "Whether a fused kernel can and should run a call, which one, and why. From its arguments "
      "alone.");
  module.def("cuda_kernel_architectures", &KernelArchitectures,
             "Architectures that this build holds kernels for; empty without kernels.");
  module.def(
      "cuda_ffi_targets", [] { return FfiTargetCapsules(CudaFfiTargets()); },
      "Capsules of the custom calls on GPUs.");
  module.def(
      "cuda_ffi_types", [] { return FfiTypeCapsules(CudaFfiTypes()); },
      "Capsules of their state types; register these first.");
}

}  // namespace jax_symm

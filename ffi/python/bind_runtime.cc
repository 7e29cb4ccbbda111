// Workspaces on host memory, and the FFI targets that use them.
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "python/ffi_capsules.h"
#include "python/native_workspace.h"
#include "runtime/host_workspace.h"
#include "xla/host_handlers.h"

namespace jax_symm {
namespace {

using PyMapping = Held<Mapping>;

LocalRank MakeLocalRank(int64_t device_ordinal, int group, int rank,
                        const std::vector<PyMapping*>& mappings) {
  LocalRank local{device_ordinal, group, rank, {}};
  for (const PyMapping* mapping : mappings) local.mappings.push_back(mapping->get());
  return local;
}

using NativeHostWorkspace = NativeWorkspace<HostWorkspace>;

std::unique_ptr<NativeHostWorkspace> OpenWorkspace(
    std::string name, int64_t nonce, int64_t timeout_ns, int world_size, uint64_t capacity_bytes,
    bool all_reduce, std::string axis, std::vector<std::vector<std::string>> rank_labels,
    std::vector<LocalRank> locals) {
  return std::make_unique<NativeHostWorkspace>(
      ValueOrThrow(HostWorkspace::Open(MakeWorkspaceOptions<HostWorkspaceOptions>(
          std::move(name), nonce, timeout_ns, world_size, capacity_bytes, all_reduce,
          std::move(axis), std::move(rank_labels), std::move(locals)))));
}

void BindWorkspace(nb::module_& module) {
  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<LocalRank>(module, "LocalRank", "A rank of this process.")
      .def(nb::new_(&MakeLocalRank), nb::arg("device_ordinal"), nb::arg("group"), nb::arg("rank"),
           nb::arg("mappings"));
  BindNativeWorkspace<HostWorkspace>(module, "NativeWorkspace",
                                     "An open workspace on host memory.");
  module.def("open_workspace", &OpenWorkspace, nb::arg("name"), nb::arg("nonce"),
             nb::arg("timeout_ns"), nb::arg("world_size"), nb::arg("capacity_bytes"),
             nb::arg("all_reduce"), nb::arg("axis"), nb::arg("rank_labels"), nb::arg("locals"),
             NoGil(), "Starts the threads of a workspace and makes its name known to programs.");
  module.def(
      "host_workspace_nbytes",
      [](int world_size, uint64_t capacity_bytes, bool all_reduce) {
        return ValueOrThrow(HostWorkspaceBytes(world_size, capacity_bytes, all_reduce));
      },
      nb::arg("world_size"), nb::arg("capacity_bytes"), nb::arg("all_reduce"),
      "Bytes of symmetric memory that a workspace needs per rank.");
}

}  // namespace

void BindRuntime(nb::module_& module) {
  BindWorkspace(module);
  module.def(
      "ffi_targets", [] { return FfiTargetCapsules(HostFfiTargets()); },
      "Capsules of the custom calls on CPU, by target name.");
  module.def("restart_instances", &RestartInstances, nb::arg("workspace"), nb::arg("call_site"),
             "Tells that a call with this tag is lowered again, hence for another executable.");
  module.def(
      "ffi_types", [] { return FfiTypeCapsules(HostFfiTypes()); },
      "Capsules of their state types; register these first.");
}

}  // namespace jax_symm

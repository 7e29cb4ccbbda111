// Workspaces on host memory, and the FFI targets that use them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "python/ffi_capsules.h"
#include "runtime/host_workspace.h"
#include "xla/host_handlers.h"

namespace jax_symm {
namespace {

using PyMapping = Held<Mapping>;

/// A workspace in the process that opened it. A forked child has none of its threads, so there it
/// is inert: whatever the child does or drops leaves the parent's workspace alone.
class NativeWorkspace {
 public:
  explicit NativeWorkspace(std::shared_ptr<HostWorkspace> workspace)
      : workspace_(std::move(workspace)), owner_(getpid()) {}
  NativeWorkspace(const NativeWorkspace&) = delete;
  NativeWorkspace& operator=(const NativeWorkspace&) = delete;
  ~NativeWorkspace() {
    if (Forked()) {
      new std::shared_ptr<HostWorkspace>(std::move(workspace_));  // never dropped in the child
    } else {
      workspace_->Abandon();
    }
  }

  HostWorkspace& get() const {
    if (Forked()) {
      throw StatusError(FailedPrecondition("the workspace was opened in process ", owner_,
                                           ", this is process ", getpid(),
                                           ", forked from it; open another workspace here"));
    }
    return *workspace_;
  }

  void Close(int64_t deadline_ns) {
    if (Forked()) return;
    ThrowIfError(workspace_->Close(std::chrono::nanoseconds(deadline_ns)));
  }

 private:
  bool Forked() const { return getpid() != owner_; }

  std::shared_ptr<HostWorkspace> workspace_;
  const pid_t owner_;
};

LocalRank MakeLocalRank(int64_t device_ordinal, int group, int rank,
                        const std::vector<PyMapping*>& mappings) {
  LocalRank local{device_ordinal, group, rank, {}};
  for (const PyMapping* mapping : mappings) local.mappings.push_back(mapping->get());
  return local;
}

std::unique_ptr<NativeWorkspace> OpenWorkspace(std::string name, int64_t nonce, int64_t timeout_ns,
                                               int world_size, uint64_t capacity_bytes,
                                               bool all_reduce, std::string axis,
                                               std::vector<std::vector<std::string>> rank_labels,
                                               std::vector<LocalRank> locals) {
  return std::make_unique<NativeWorkspace>(ValueOrThrow(HostWorkspace::Open({
      .name = std::move(name),
      .axis = std::move(axis),
      .nonce = nonce,
      .timeout = std::chrono::nanoseconds(timeout_ns),
      .world_size = world_size,
      .capacity_bytes = capacity_bytes,
      .all_reduce = all_reduce,
      .rank_labels = std::move(rank_labels),
      .locals = std::move(locals),
  })));
}

std::vector<std::tuple<std::string, int, int, int64_t>> Calls(const NativeWorkspace& self) {
  std::vector<std::tuple<std::string, int, int, int64_t>> counts;
  for (const CallCount& c : self.get().Calls())
    counts.emplace_back(c.path, c.group, c.rank, c.count);
  return counts;
}

void BindWorkspace(nb::module_& module) {
  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<LocalRank>(module, "LocalRank", "A rank of this process.")
      .def(nb::new_(&MakeLocalRank), nb::arg("device_ordinal"), nb::arg("group"), nb::arg("rank"),
           nb::arg("mappings"));

  nb::class_<NativeWorkspace>(module, "NativeWorkspace", "An open workspace on host memory.")
      .def("close", &NativeWorkspace::Close, nb::arg("deadline_ns"), NoGil(),
           "Waits up to deadline_ns for calls in flight, then lets go. Idempotent.")
      .def(
          "check", [](const NativeWorkspace& self) { ThrowIfError(self.get().Check()); },
          "Raises the first fault, if there was one.")
      .def(
          "abort",
          [](const NativeWorkspace& self, int group, int rank, const std::string& message) {
            self.get().Abort(MakeStatus(StatusCode::kAborted, message, " (rank ", rank,
                                        " of group ", group, " is lost)"));
          },
          nb::arg("group"), nb::arg("rank"), nb::arg("message"), NoGil(),
          "Fails the workspace on every rank: a peer is lost.")
      .def("calls", &Calls, "(path, group, rank, count) for each rank of this process.")
      .def_prop_ro("generation",
                   [](const NativeWorkspace& self) { return self.get().generation(); })
      .def_prop_ro("closed", [](const NativeWorkspace& self) { return self.get().closed(); });

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

// A workspace as Python holds it, on memory of the host or of GPUs.
#pragma once

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "runtime/host_workspace.h"

namespace jax_symm {

/// A forked child has neither the threads nor the driver of the process that opened the workspace,
/// so there it is inert: whatever the child does or drops leaves the parent's workspace alone.
template <typename Workspace>
class NativeWorkspace {
 public:
  explicit NativeWorkspace(std::shared_ptr<Workspace> workspace)
      : workspace_(std::move(workspace)), owner_(getpid()) {}
  NativeWorkspace(const NativeWorkspace&) = delete;
  NativeWorkspace& operator=(const NativeWorkspace&) = delete;
  ~NativeWorkspace() {
    if (Forked()) {
      new std::shared_ptr<Workspace>(std::move(workspace_));  // never dropped in the child
    } else {
      Workspace::Abandon(workspace_);
      DropWithoutGil(std::move(workspace_));
    }
  }

  Workspace& get() const {
    if (Forked()) {
      throw StatusError(FailedPrecondition("the workspace was opened in process ", owner_,
                                           ", this is process ", getpid(),
                                           ", forked from it; open another workspace here"));
    }
    return *workspace_;
  }

  void Close(int64_t deadline_ns) {
    if (!Forked()) ThrowIfError(workspace_->Close(std::chrono::nanoseconds(deadline_ns)));
  }

  std::vector<std::tuple<std::string, int, int, int64_t>> Calls() const {
    std::vector<std::tuple<std::string, int, int, int64_t>> counts;
    for (const CallCount& c : get().Calls()) {
      counts.emplace_back(c.path, c.group, c.rank, c.count);
    }
    return counts;
  }

 private:
  bool Forked() const { return getpid() != owner_; }

  std::shared_ptr<Workspace> workspace_;
  const pid_t owner_;
};

/// What the options of an opening have in common, in the order of Python's arguments.
template <typename Options, typename Local>
Options MakeWorkspaceOptions(std::string name, int64_t nonce, int64_t timeout_ns, int world_size,
                             uint64_t capacity_bytes, bool all_reduce, std::string axis,
                             std::vector<std::vector<std::string>> rank_labels,
                             std::vector<Local> locals) {
  Options options;
  options.name = std::move(name);
  options.axis = std::move(axis);
  options.nonce = nonce;
  options.timeout = std::chrono::nanoseconds(timeout_ns);
  options.world_size = world_size;
  options.capacity_bytes = capacity_bytes;
  options.all_reduce = all_reduce;
  options.rank_labels = std::move(rank_labels);
  options.locals = std::move(locals);
  return options;
}

template <typename Workspace>
nb::class_<NativeWorkspace<Workspace>> BindNativeWorkspace(nb::module_& module, const char* name,
                                                           const char* doc) {
  using Self = NativeWorkspace<Workspace>;
  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  return nb::class_<Self>(module, name, doc)
      .def("close", &Self::Close, nb::arg("deadline_ns"), NoGil(),
           "Waits up to deadline_ns for calls in flight, then lets go. Idempotent.")
      .def(
          "check", [](const Self& self) { ThrowIfError(self.get().Check()); },
          "Raises the first fault, if there was one.")
      .def(
          "abort",
          [](const Self& self, int group, int rank, const std::string& message) {
            self.get().Abort(group, rank, message);
          },
          nb::arg("group"), nb::arg("rank"), nb::arg("message"), NoGil(),
          "Fails the workspace: a rank's process is gone.")
      .def("calls", &Self::Calls, "(path, group, rank, count) for each rank of this process.")
      .def_prop_ro("generation", [](const Self& self) { return self.get().generation(); })
      .def_prop_ro("closed", [](const Self& self) { return self.get().closed(); });
}

}  // namespace jax_symm

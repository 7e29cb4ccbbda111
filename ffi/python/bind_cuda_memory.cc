// The CUDA backend and multicast objects as Python sees them, and the books of what is held.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/log.h"
#include "driver/driver_api.h"
#include "memory/cuda_backend.h"
#include "memory/ledger.h"
#include "python/bindings.h"

namespace jax_symm {
namespace {

using PyAllocation = Held<Allocation>;
using PyMulticast = Held<MulticastObject>;
using NoGil = nb::call_guard<nb::gil_scoped_release>;

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

void BindMulticastObjects(nb::module_& module) {
  BindHeld<MulticastObject>(module, "MulticastObject", "What devices multicast through.")
      .def_prop_ro("nbytes", [](const PyMulticast& self) { return self.get()->nbytes(); })
      .def(
          "export_fd",
          [](const PyMulticast& self) { return ValueOrThrow(self.get()->ExportFd()).Release(); },
          NoGil(), "A descriptor (close-on-exec) for a peer on this host; the caller closes it.")
      .def(
          "export_fabric", [](const PyMulticast& self) { return ExportFabric(*self.get()); },
          "A handle for a peer in the same NVLink domain.")
      .def(
          "add_device",
          [](const PyMulticast& self, int device) { ThrowIfError(self.get()->AddDevice(device)); },
          nb::arg("device"), NoGil(), "Joins a device of this process. Does not wait.");
  BindHeld<MulticastBinding>(module, "MulticastBinding", "Memory bound to a multicast object.");
  BindHeld<MulticastMapping>(module, "MulticastMapping", "A multicast object, mapped whole.")
      .def_prop_ro("address",
                   [](const Held<MulticastMapping>& self) { return self.get()->address().value; })
      .def_prop_ro("nbytes",
                   [](const Held<MulticastMapping>& self) { return self.get()->nbytes(); });
}

void DefineMulticastVerbs(nb::class_<CudaBackend, MemoryBackend>& backend) {
  backend
      .def(
          "multicast_granularity",
          [](const CudaBackend& self, int num_devices) {
            return ValueOrThrow(self.MulticastGranularity(num_devices));
          },
          nb::arg("num_devices"), NoGil())
      .def(
          "create_multicast",
          [](CudaBackend& self, int num_devices, uint64_t nbytes, HandleType handle_type) {
            return Hold(ValueOrThrow(self.CreateMulticast(num_devices, nbytes, handle_type)));
          },
          nb::arg("num_devices"), nb::arg("nbytes"), nb::arg("handle_type"), NoGil())
      .def(
          "import_multicast_fd",
          [](CudaBackend& self, int fd, uint64_t nbytes) {
            return Hold(ValueOrThrow(self.ImportMulticastFd(fd, nbytes)));
          },
          nb::arg("fd"), nb::arg("nbytes"), NoGil())
      .def(
          "import_multicast_fabric",
          [](CudaBackend& self, const nb::bytes& handle, uint64_t nbytes) {
            const std::string copy(handle.c_str(), handle.size());
            nb::gil_scoped_release without_gil;
            return Hold(ValueOrThrow(self.ImportMulticastFabric(copy, nbytes)));
          },
          nb::arg("handle"), nb::arg("nbytes"))
      .def(
          "bind_multicast",
          [](CudaBackend& self, const PyMulticast& object, uint64_t offset,
             const PyAllocation& allocation, double deadline_s) {
            return Hold(ValueOrThrow(
                self.BindMulticast(object.get(), offset, allocation.get(), Seconds(deadline_s))));
          },
          nb::arg("object"), nb::arg("offset"), nb::arg("allocation"), nb::arg("deadline_s"),
          NoGil())
      .def(
          "map_multicast",
          [](CudaBackend& self, const PyMulticast& object, const std::vector<int>& devices,
             double deadline_s) {
            return Hold(
                ValueOrThrow(self.MapMulticast(object.get(), devices, Seconds(deadline_s))));
          },
          nb::arg("object"), nb::arg("devices"), nb::arg("deadline_s"), NoGil());
}

std::shared_ptr<CudaBackend> MakeCudaBackend(const std::string& library_path,
                                             bool forbid_multicast) {
  auto api = ValueOrThrow(driver::LoadApi(
      library_path, forbid_multicast ? driver::Multicast::kAbort : driver::Multicast::kAllowed));
  return ValueOrThrow(CudaBackend::Create(std::move(api)));
}

void BindBackend(nb::module_& module) {
  auto backend =
      nb::class_<CudaBackend, MemoryBackend>(module, "CudaBackend", "Symmetric memory for GPUs.");
  DefineMulticastVerbs(backend);
  backend
      .def(
          "memory_info",
          [](CudaBackend& self, int device) { return ValueOrThrow(self.MemoryInfo(device)); },
          nb::arg("device"), NoGil(), "Free and total bytes of a GPU.")
      .def(
          "probe_fabric",
          [](CudaBackend& self, int device) { ThrowIfError(self.ProbeFabric(device)); },
          nb::arg("device"), NoGil(), "Raises unless fabric handles really work on a GPU.")
      .def(
          "copy_to_device",
          [](CudaBackend& self, int device, uint64_t address, const nb::bytes& data) {
            const char* from = data.c_str();
            const size_t nbytes = data.size();
            nb::gil_scoped_release without_gil;  // the caller holds `data`
            ThrowIfError(self.CopyToDevice(device, address, from, nbytes));
          },
          nb::arg("device"), nb::arg("address"), nb::arg("data"))
      .def(
          "copy_to_host",
          [](CudaBackend& self, int device, uint64_t address, uint64_t nbytes) {
            std::string data(nbytes, '\0');
            {
              nb::gil_scoped_release without_gil;
              ThrowIfError(self.CopyToHost(device, data.data(), address, nbytes));
            }
            return nb::bytes(data.data(), data.size());
          },
          nb::arg("device"), nb::arg("address"), nb::arg("nbytes"));
  module.def("cuda_backend", &MakeCudaBackend, nb::arg("library_path") = "",
             nb::arg("forbid_multicast") = false, NoGil(),
             "Loads the CUDA driver. With `forbid_multicast`, its multicast calls abort.");
}

nb::typed<nb::dict, nb::str, nb::int_> LedgerAsDict() {
  const LedgerCounts counts = ReadLedger();
  nb::typed<nb::dict, nb::str, nb::int_> result;
  result["allocations"] = counts[Resource::kAllocation];
  result["reservations"] = counts[Resource::kReservation];
  result["mappings"] = counts[Resource::kMapping];
  result["multicast_objects"] = counts[Resource::kMulticastObject];
  result["multicast_bindings"] = counts[Resource::kMulticastBinding];
  result["quarantined"] = counts.quarantined;
  result["teardown_failures"] = counts.teardown_failures;
  return result;
}

void QuarantineHeld(const std::string& why, const std::vector<Held<Mapping>*>& mappings,
                    const std::vector<PyAllocation*>& allocations,
                    const std::vector<Held<MulticastBinding>*>& bindings) {
  Kept kept;
  for (const auto* held : mappings) kept.push_back(held->get());
  for (const auto* held : allocations) kept.push_back(held->get());
  for (const auto* held : bindings) kept.push_back(held->get());
  Quarantine(why, std::move(kept));
}

/// From then on deleters leave the driver alone: it may be gone before they run.
void MarkProcessExitingAtExit() {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&MarkProcessExiting));
}

}  // namespace

void BindCudaMemory(nb::module_& module) {
  BindMulticastObjects(module);
  BindBackend(module);
  module.def("quarantine", &QuarantineHeld, nb::arg("why"), nb::arg("mappings"),
             nb::arg("allocations"), nb::arg("bindings"),
             "Keeps memory until the process ends, and counts it: a kernel may still use it.");
  module.def("abandoned_count", &AbandonedCount, "Views of GPU memory that finalisers left.");
  module.def("release_abandoned", &ReleaseAbandoned, NoGil(),
             "Frees what finalisers left. The devices must be idle.");
  MarkProcessExitingAtExit();
  module.def("ledger", &LedgerAsDict, "Driver objects that this process holds, by kind.");
}

}  // namespace jax_symm

// The CUDA backend as Python makes it, and the books of what this process holds.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "driver/driver_api.h"
#include "memory/cuda_backend.h"
#include "memory/ledger.h"
#include "python/bind_memory.h"

namespace nb = nanobind;

namespace jax_symm {
namespace {

CudaBackend& AsCuda(const BackendHolder& holder) {
  auto* backend = dynamic_cast<CudaBackend*>(holder.get().get());
  if (backend == nullptr) ThrowStatus(InvalidArgument("this is not the CUDA backend"));
  return *backend;
}

BackendHolder MakeBackend(const std::string& library_path, bool forbid_multicast) {
  const auto multicast = forbid_multicast ? driver::Multicast::kAbort : driver::Multicast::kAllowed;
  return BackendHolder(Unlocked([&]() -> StatusOr<std::shared_ptr<MemoryBackend>> {
    JAX_SYMM_ASSIGN_OR_RETURN(auto api, driver::LoadApi(library_path, multicast));
    JAX_SYMM_ASSIGN_OR_RETURN(auto backend, CudaBackend::Create(std::move(api)));
    return std::shared_ptr<MemoryBackend>(std::move(backend));
  }));
}

nb::dict LedgerDict() {
  const LedgerCounts counts = ReadLedger();
  nb::dict result;
  result["allocations"] = counts[Resource::kAllocation];
  result["reservations"] = counts[Resource::kReservation];
  result["mappings"] = counts[Resource::kMapping];
  result["multicast_objects"] = counts[Resource::kMulticastObject];
  result["multicast_bindings"] = counts[Resource::kMulticastBinding];
  result["quarantined"] = counts.quarantined;
  result["teardown_failures"] = counts.teardown_failures;
  return result;
}

}  // namespace

void BindCudaMemory(nb::module_& m) {
  m.def("cuda_backend", &MakeBackend, nb::arg("library_path") = "",
        nb::arg("forbid_multicast") = false);
  m.def("ledger", &LedgerDict);
  m.def("cuda_memory_info", [](const BackendHolder& backend, int device) {
    return Unlocked([&] { return AsCuda(backend).MemoryInfo(device); });
  });
  m.def("cuda_probe_fabric", [](const BackendHolder& backend, int device) {
    UnlockedStatus([&] { return AsCuda(backend).ProbeFabric(device); });
  });
  m.def("cuda_copy_to_device",
        [](const BackendHolder& backend, int device, uint64_t address, const nb::bytes& data) {
          UnlockedStatus([&] {
            return AsCuda(backend).CopyToDevice(device, address, data.c_str(), data.size());
          });
        });
  m.def("cuda_copy_to_host",
        [](const BackendHolder& backend, int device, uint64_t address, uint64_t nbytes) {
          std::string data(nbytes, '\0');
          UnlockedStatus(
              [&] { return AsCuda(backend).CopyToHost(device, data.data(), address, nbytes); });
          return nb::bytes(data.data(), data.size());
        });
}

}  // namespace jax_symm

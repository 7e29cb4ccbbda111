// Symmetric memory: the verbs of a backend, and arrays over mapped memory.
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/checked_math.h"
#include "memory/host_backend.h"
#include "memory/ledger.h"
#include "memory/memory_backend.h"
#include "python/bindings.h"

namespace jax_symm {
namespace {

using PyAllocation = Held<Allocation>;
using PyMapping = Held<Mapping>;
using Shape = std::vector<uint64_t>;

nb::dlpack::dtype ParseDtype(const std::string& name) {
  using Code = nb::dlpack::dtype_code;
  static const auto* const kTypes = new std::map<std::string, nb::dlpack::dtype>{
      {"bfloat16", {static_cast<uint8_t>(Code::Bfloat), 16, 1}},
      {"float16", {static_cast<uint8_t>(Code::Float), 16, 1}},
      {"float32", {static_cast<uint8_t>(Code::Float), 32, 1}},
      {"float64", {static_cast<uint8_t>(Code::Float), 64, 1}},
      {"int8", {static_cast<uint8_t>(Code::Int), 8, 1}},
      {"int32", {static_cast<uint8_t>(Code::Int), 32, 1}},
      {"int64", {static_cast<uint8_t>(Code::Int), 64, 1}},
      {"uint8", {static_cast<uint8_t>(Code::UInt), 8, 1}},
      {"uint16", {static_cast<uint8_t>(Code::UInt), 16, 1}},
      {"uint32", {static_cast<uint8_t>(Code::UInt), 32, 1}},
      {"uint64", {static_cast<uint8_t>(Code::UInt), 64, 1}},
  };
  const auto found = kTypes->find(name);
  if (found == kTypes->end()) {
    throw StatusError(Unimplemented("array_view: dtype ", name,
                                    " has no view; use a float, int or uint of 8 to 64 bits"));
  }
  return found->second;
}

int ParseDeviceType(const std::string& name) {
  if (name == "cpu") return nb::device::cpu::value;
  if (name == "cuda") return nb::device::cuda::value;
  throw StatusError(InvalidArgument("array_view: device_type is ", name, ", expected cpu or cuda"));
}

StatusOr<uint64_t> ViewBytes(const Shape& shape, const nb::dlpack::dtype& dtype) {
  uint64_t nbytes = dtype.bits / 8;
  for (uint64_t extent : shape) {
    JAX_SYMM_ASSIGN_OR_RETURN(nbytes, CheckedMul(nbytes, extent));
  }
  return nbytes;
}

void DropView(void* pointer) noexcept { delete static_cast<std::shared_ptr<Mapping>*>(pointer); }

/// An array may go while programs run, so its memory is unmapped later.
void AbandonView(void* pointer) noexcept {
  Abandon(*static_cast<std::shared_ptr<Mapping>*>(pointer));
  DropView(pointer);
}

/// The view holds the mapping, so the memory lives as long as any array made from it.
nb::ndarray<nb::array_api> ArrayView(const PyMapping& held, uint64_t offset, const Shape& shape,
                                     const std::string& dtype_name, const std::string& device_type,
                                     int ordinal) {
  const std::shared_ptr<Mapping> mapping = held.get();
  const nb::dlpack::dtype dtype = ParseDtype(dtype_name);
  const uint64_t end = ValueOrThrow(CheckedAdd(offset, ValueOrThrow(ViewBytes(shape, dtype))));
  if (end > mapping->nbytes() || offset % (dtype.bits / 8) != 0) {
    throw StatusError(InvalidArgument("array_view: bytes [", offset, ", ", end, ") of ", dtype_name,
                                      " do not fit a mapping of ", mapping->nbytes(), " bytes"));
  }
  auto owner = std::make_unique<std::shared_ptr<Mapping>>(mapping);
  const int device = ParseDeviceType(device_type);
  const bool on_gpu = device == nb::device::cuda::value;
  nb::capsule keep_alive(owner.get(), on_gpu ? &AbandonView : &DropView);
  owner.release();
  const std::vector<size_t> extents(shape.begin(), shape.end());
  return nb::ndarray<nb::array_api>(reinterpret_cast<void*>(mapping->address().value + offset),
                                    extents.size(), extents.data(), keep_alive, nullptr, dtype,
                                    ParseDeviceType(device_type), ordinal);
}

void BindObjects(nb::module_& module) {
  nb::enum_<HandleType>(module, "HandleType", "How an allocation is handed to a peer.")
      .value("POSIX_FD", HandleType::kPosixFd)
      .value("FABRIC", HandleType::kFabric)
      .value("NONE", HandleType::kNone);

  BindHeld<Allocation>(module, "Allocation", "Physical memory of one device.")
      .def_prop_ro("nbytes", [](const PyAllocation& self) { return self.get()->nbytes(); })
      .def(
          "export_fd",
          [](const PyAllocation& self) { return ValueOrThrow(self.get()->ExportFd()).Release(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "A descriptor (close-on-exec) for a peer on this host; the caller closes it.")
      .def(
          "export_fabric", [](const PyAllocation& self) { return ExportFabric(*self.get()); },
          "A handle for a peer in the same NVLink domain.");

  BindHeld<Mapping>(module, "Mapping", "An allocation at an address of this process.")
      .def_prop_ro("address", [](const PyMapping& self) { return self.get()->address().value; })
      .def_prop_ro("nbytes", [](const PyMapping& self) { return self.get()->nbytes(); });

  nb::class_<DeviceFacts>(module, "DeviceFacts", "What a device can do, by its attributes.")
      .def_ro("uuid", &DeviceFacts::uuid)
      .def_ro("posix_fd", &DeviceFacts::posix_fd)
      .def_ro("fabric", &DeviceFacts::fabric)
      .def_ro("multicast", &DeviceFacts::multicast);
}

/// Every verb may enter the driver, so none holds the GIL.
void BindBackend(nb::module_& module) {
  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<MemoryBackend>(module, "MemoryBackend", "The verbs of symmetric memory.")
      .def_prop_ro("name", &MemoryBackend::name)
      .def(
          "granularity",
          [](const MemoryBackend& self, int device) {
            return ValueOrThrow(self.Granularity(device));
          },
          nb::arg("device"), NoGil())
      .def(
          "facts",
          [](const MemoryBackend& self, int device) { return ValueOrThrow(self.Facts(device)); },
          nb::arg("device"), NoGil())
      .def(
          "can_access",
          [](const MemoryBackend& self, int device, int peer) {
            return ValueOrThrow(self.CanAccess(device, peer));
          },
          nb::arg("device"), nb::arg("peer"), NoGil())
      .def(
          "create",
          [](MemoryBackend& self, int device, uint64_t nbytes, HandleType handle_type) {
            return Hold(ValueOrThrow(self.Create(device, nbytes, handle_type)));
          },
          nb::arg("device"), nb::arg("nbytes"), nb::arg("handle_type"), NoGil())
      .def(
          "import_fd",
          [](MemoryBackend& self, int device, int fd, uint64_t nbytes) {
            return Hold(ValueOrThrow(self.ImportFd(device, fd, nbytes)));
          },
          nb::arg("device"), nb::arg("fd"), nb::arg("nbytes"), NoGil())
      .def(
          "import_fabric",
          [](MemoryBackend& self, int device, const nb::bytes& handle, uint64_t nbytes) {
            const std::string copy(handle.c_str(), handle.size());
            nb::gil_scoped_release without_gil;
            return Hold(ValueOrThrow(self.ImportFabric(device, copy, nbytes)));
          },
          nb::arg("device"), nb::arg("handle"), nb::arg("nbytes"))
      .def(
          "map",
          [](MemoryBackend& self, const PyAllocation& allocation, const std::vector<int>& devices) {
            return Hold(ValueOrThrow(self.Map(allocation.get(), devices)));
          },
          nb::arg("allocation"), nb::arg("devices"), NoGil())
      .def(
          "zero",
          [](MemoryBackend& self, int device, const PyMapping& mapping, uint64_t offset,
             uint64_t nbytes) { ThrowIfError(self.Zero(device, *mapping.get(), offset, nbytes)); },
          nb::arg("device"), nb::arg("mapping"), nb::arg("offset"), nb::arg("nbytes"), NoGil())
      .def(
          "synchronize",
          [](MemoryBackend& self, int device) { ThrowIfError(self.Synchronize(device)); },
          nb::arg("device"), NoGil());
  module.def("host_backend", &MakeHostBackend, "Symmetric memory for CPU devices.");
}

}  // namespace

void BindMemory(nb::module_& module) {
  BindObjects(module);
  BindBackend(module);
  module.def("array_view", &ArrayView, nb::arg("mapping"), nb::arg("offset"), nb::arg("shape"),
             nb::arg("dtype"), nb::arg("device_type"), nb::arg("ordinal"),
             "A DLPack view of mapped memory; it keeps the mapping alive.");
}

}  // namespace jax_symm

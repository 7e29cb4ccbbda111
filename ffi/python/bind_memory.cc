// Python's view of symmetric memory: the verbs of every backend, multicast included.
#include "python/bind_memory.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace jax_symm {
namespace {

using MulticastHolder = Holder<MulticastObject>;
using BindingHolder = Holder<MulticastBinding>;
using MulticastMappingHolder = Holder<MulticastMapping>;

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

nb::bytes Bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

std::string Text(const nb::bytes& bytes) { return std::string(bytes.c_str(), bytes.size()); }

template <typename T>
void DefineExports(nb::class_<Holder<T>>& type) {
  type.def_prop_ro("nbytes", [](const Holder<T>& self) { return self->nbytes(); })
      .def("export_fd",
           [](const Holder<T>& self) {
             auto object = self.get();
             return Unlocked([&] { return object->ExportFd(); }).Release();
           })
      .def("export_fabric",
           [](const Holder<T>& self) {
             auto object = self.get();
             return Bytes(Unlocked([&] { return object->ExportFabric(); }));
           })
      .def("release", &Holder<T>::Drop);
}

void BindObjects(nb::module_& m) {
  nb::enum_<HandleType>(m, "HandleType")
      .value("NONE", HandleType::kNone)
      .value("POSIX_FD", HandleType::kPosixFd)
      .value("FABRIC", HandleType::kFabric);
  auto allocation = nb::class_<AllocationHolder>(m, "Allocation");
  DefineExports(allocation);
  nb::class_<MappingHolder>(m, "Mapping")
      .def_prop_ro("address", [](const MappingHolder& self) { return self->address().value; })
      .def_prop_ro("nbytes", [](const MappingHolder& self) { return self->nbytes(); })
      .def("release", &MappingHolder::Drop);
  auto multicast = nb::class_<MulticastHolder>(m, "MulticastObject");
  DefineExports(multicast);
  multicast.def("add_device", [](const MulticastHolder& self, int device) {
    auto object = self.get();
    UnlockedStatus([&] { return object->AddDevice(device); });
  });
  nb::class_<BindingHolder>(m, "MulticastBinding").def("release", &BindingHolder::Drop);
  nb::class_<MulticastMappingHolder>(m, "MulticastMapping")
      .def_prop_ro("address",
                   [](const MulticastMappingHolder& self) { return self->address().value; })
      .def_prop_ro("nbytes", [](const MulticastMappingHolder& self) { return self->nbytes(); })
      .def("release", &MulticastMappingHolder::Drop);
  nb::class_<DeviceFacts>(m, "DeviceFacts")
      .def_ro("uuid", &DeviceFacts::uuid)
      .def_ro("posix_fd", &DeviceFacts::posix_fd)
      .def_ro("fabric", &DeviceFacts::fabric)
      .def_ro("multicast", &DeviceFacts::multicast);
}

void DefineMemoryVerbs(nb::class_<BackendHolder>& type) {
  type.def_prop_ro("name", [](const BackendHolder& self) { return self->name(); })
      .def("granularity",
           [](const BackendHolder& self, int device) {
             return Unlocked([&] { return self->Granularity(device); });
           })
      .def("facts", [](const BackendHolder& self,
                       int device) { return Unlocked([&] { return self->Facts(device); }); })
      .def("can_access",
           [](const BackendHolder& self, int device, int peer) {
             return Unlocked([&] { return self->CanAccess(device, peer); });
           })
      .def("create",
           [](const BackendHolder& self, int device, uint64_t nbytes, HandleType type) {
             return AllocationHolder(Unlocked([&] { return self->Create(device, nbytes, type); }));
           })
      .def("import_fd",
           [](const BackendHolder& self, int device, int fd, uint64_t nbytes) {
             return AllocationHolder(Unlocked([&] { return self->ImportFd(device, fd, nbytes); }));
           })
      .def("import_fabric",
           [](const BackendHolder& self, int device, const nb::bytes& handle, uint64_t nbytes) {
             const std::string text = Text(handle);
             return AllocationHolder(
                 Unlocked([&] { return self->ImportFabric(device, text, nbytes); }));
           })
      .def("map",
           [](const BackendHolder& self, const AllocationHolder& allocation,
              const std::vector<int>& devices) {
             auto memory = allocation.get();
             return MappingHolder(Unlocked([&] { return self->Map(memory, devices); }));
           })
      .def("zero",
           [](const BackendHolder& self, int device, const MappingHolder& mapping, uint64_t offset,
              uint64_t nbytes) {
             auto range = mapping.get();
             UnlockedStatus([&] { return self->Zero(device, *range, offset, nbytes); });
           })
      .def("synchronize", [](const BackendHolder& self, int device) {
        UnlockedStatus([&] { return self->Synchronize(device); });
      });
}

void DefineMulticastVerbs(nb::class_<BackendHolder>& type) {
  type.def("multicast_granularity",
           [](const BackendHolder& self, int num_devices) {
             return Unlocked([&] { return self->MulticastGranularity(num_devices); });
           })
      .def("create_multicast",
           [](const BackendHolder& self, int num_devices, uint64_t nbytes, HandleType type) {
             return MulticastHolder(
                 Unlocked([&] { return self->CreateMulticast(num_devices, nbytes, type); }));
           })
      .def("import_multicast_fd",
           [](const BackendHolder& self, int fd, uint64_t nbytes) {
             return MulticastHolder(Unlocked([&] { return self->ImportMulticastFd(fd, nbytes); }));
           })
      .def("import_multicast_fabric",
           [](const BackendHolder& self, const nb::bytes& handle, uint64_t nbytes) {
             const std::string text = Text(handle);
             return MulticastHolder(
                 Unlocked([&] { return self->ImportMulticastFabric(text, nbytes); }));
           })
      .def("bind_multicast",
           [](const BackendHolder& self, const MulticastHolder& object, uint64_t offset,
              const AllocationHolder& allocation, double deadline_s) {
             auto target = object.get();
             auto memory = allocation.get();
             return BindingHolder(Unlocked(
                 [&] { return self->BindMulticast(target, offset, memory, Seconds(deadline_s)); }));
           })
      .def("map_multicast", [](const BackendHolder& self, const MulticastHolder& object,
                               const std::vector<int>& devices, double deadline_s) {
        auto target = object.get();
        return MulticastMappingHolder(
            Unlocked([&] { return self->MapMulticast(target, devices, Seconds(deadline_s)); }));
      });
}

}  // namespace

void BindMemory(nb::module_& m) {
  BindObjects(m);
  auto backend = nb::class_<BackendHolder>(m, "MemoryBackend");
  DefineMemoryVerbs(backend);
  DefineMulticastVerbs(backend);
}

}  // namespace jax_symm

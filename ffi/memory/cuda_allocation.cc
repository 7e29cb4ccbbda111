#include "memory/cuda_allocation.h"

#include <fcntl.h>

#include <cstring>

namespace jax_symm {

DriverHandle::~DriverHandle() {
  if (!api_->Usable()) return;
  ReportTeardown(driver::Call(*api_, api_->cuMemRelease, StrCat("releasing ", what_), value_));
}

StatusOr<UniqueFd> DriverHandle::ExportFd() const {
  int fd = -1;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuMemExportToShareableHandle,
                                        StrCat("exporting ", what_, " as a file descriptor"),
                                        static_cast<void*>(&fd), value_,
                                        DriverHandleType(HandleType::kPosixFd), 0ULL));
  UniqueFd owned(fd);
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return Internal("cannot set close-on-exec on an exported descriptor: ", std::strerror(errno));
  }
  return owned;
}

StatusOr<std::string> DriverHandle::ExportFabric() const {
  driver::FabricHandle handle{};
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(
      *api_, api_->cuMemExportToShareableHandle, StrCat("exporting ", what_, " as a fabric handle"),
      static_cast<void*>(&handle), value_, DriverHandleType(HandleType::kFabric), 0ULL));
  return std::string(reinterpret_cast<const char*>(handle.data), sizeof(handle.data));
}

int DriverHandleType(HandleType type) {
  switch (type) {
    case HandleType::kPosixFd:
      return driver::kHandleTypePosixFd;
    case HandleType::kFabric:
      return driver::kHandleTypeFabric;
    case HandleType::kNone:
      return driver::kHandleTypeNone;
  }
  return driver::kHandleTypeNone;
}

StatusOr<driver::MemHandle> ImportDriverFd(const driver::Api& api, int fd,
                                           const std::string& what) {
  driver::MemHandle handle = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(
      api, api.cuMemImportFromShareableHandle,
      StrCat("importing ", what, " from a file descriptor of a peer on this host"), &handle,
      reinterpret_cast<void*>(static_cast<intptr_t>(fd)), DriverHandleType(HandleType::kPosixFd)));
  return handle;
}

StatusOr<driver::MemHandle> ImportDriverFabric(const driver::Api& api, const std::string& bytes,
                                               const std::string& what) {
  driver::FabricHandle fabric;
  if (bytes.size() != sizeof(fabric.data)) {
    return InvalidArgument("a fabric handle has ", sizeof(fabric.data), " bytes, got ",
                           bytes.size());
  }
  std::memcpy(fabric.data, bytes.data(), bytes.size());
  driver::MemHandle handle = 0;
  JAX_SYMM_RETURN_IF_ERROR(
      driver::Call(api, api.cuMemImportFromShareableHandle,
                   StrCat("importing ", what,
                          " from a fabric handle: both hosts must be in one "
                          "NVLink domain, with the IMEX channel device visible"),
                   &handle, static_cast<void*>(&fabric), DriverHandleType(HandleType::kFabric)));
  return handle;
}

driver::AllocationProp PinnedOn(int device, HandleType type) {
  driver::AllocationProp prop{};
  prop.type = driver::kAllocationPinned;
  prop.requested_handle_types = DriverHandleType(type);
  prop.location = {driver::kLocationDevice, device};
  return prop;
}

CudaAllocation::CudaAllocation(std::shared_ptr<const driver::Api> api, driver::MemHandle handle,
                               int device, uint64_t nbytes)
    : handle_(std::move(api), handle, StrCat(nbytes, " bytes of GPU memory")),
      device_(device),
      nbytes_(nbytes) {}

StatusOr<std::shared_ptr<Allocation>> CudaAllocation::Create(std::shared_ptr<const driver::Api> api,
                                                             int device, uint64_t nbytes,
                                                             HandleType type) {
  const driver::AllocationProp prop = PinnedOn(device, type);
  driver::MemHandle handle = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api, api->cuMemCreate,
                                        StrCat("allocating ", nbytes, " bytes on GPU ", device),
                                        &handle, nbytes, &prop, 0ULL));
  return std::shared_ptr<Allocation>(
      std::make_shared<CudaAllocation>(std::move(api), handle, device, nbytes));
}

}  // namespace jax_symm

#include "memory/cuda_backend.h"

#include <algorithm>

#include "base/checked_math.h"
#include "memory/blocking_call.h"
#include "memory/cuda_allocation.h"
#include "memory/cuda_multicast.h"
#include "memory/mapped_range.h"

namespace jax_symm {
namespace {

constexpr uint64_t kMaxAlignment = uint64_t{512} << 20;
// The granularity does not depend on the size, but a size must be given.
constexpr uint64_t kGranularityProbeBytes = uint64_t{2} << 20;

class CudaMapping final : public Mapping {
 public:
  explicit CudaMapping(std::unique_ptr<MappedRange> range) : range_(std::move(range)) {}
  UnicastAddress address() const override { return {range_->address()}; }
  uint64_t nbytes() const override { return range_->nbytes(); }

 private:
  std::unique_ptr<MappedRange> range_;
};

Status CheckMultiple(const char* what, uint64_t nbytes, uint64_t granularity) {
  if (granularity == 0) {
    return Internal("the driver answers a granularity of 0 for ", what);
  }
  if (nbytes == 0 || nbytes % granularity != 0) {
    return InvalidArgument(what, " of ", nbytes, " bytes; expected a positive multiple of ",
                           granularity);
  }
  return OkStatus();
}

std::string UuidText(const driver::Uuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

StatusOr<std::shared_ptr<CudaBackend>> CudaBackend::Create(std::shared_ptr<const driver::Api> api) {
  int count = 0;
  JAX_SYMM_RETURN_IF_ERROR(
      driver::Call(*api, api->cuDeviceGetCount, "while the CUDA backend was made", &count));
  std::shared_ptr<CudaBackend> backend(new CudaBackend(std::move(api)));
  backend->contexts_.resize(count);
  return backend;
}

Status CudaBackend::CheckDevice(int device) const {
  if (device >= 0 && static_cast<size_t>(device) < contexts_.size()) return OkStatus();
  return InvalidArgument("GPU ", device, " does not exist; this process sees ", contexts_.size());
}

StatusOr<driver::Context> CudaBackend::ContextOf(int device) {
  JAX_SYMM_RETURN_IF_ERROR(CheckDevice(device));
  std::lock_guard lock(mutex_);
  if (contexts_[device] == nullptr) {
    JAX_SYMM_ASSIGN_OR_RETURN(contexts_[device], PrimaryContext::Retain(api_, device));
  }
  return contexts_[device]->get();
}

StatusOr<bool> CudaBackend::Attribute(int device, driver::DeviceAttribute attribute) const {
  int value = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuDeviceGetAttribute,
                                        StrCat("attribute ", attribute, " of GPU ", device), &value,
                                        attribute, device));
  return value != 0;
}

StatusOr<uint64_t> CudaBackend::Granularity(int device) const {
  const driver::AllocationProp prop = PinnedOn(device, HandleType::kPosixFd);
  size_t granularity = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuMemGetAllocationGranularity,
                                        StrCat("for GPU ", device), &granularity, &prop,
                                        driver::kGranularityMinimum));
  if (granularity == 0) return Internal("the driver answers a granularity of 0 for GPU ", device);
  return uint64_t{granularity};
}

StatusOr<std::shared_ptr<Allocation>> CudaBackend::Create(int device, uint64_t nbytes,
                                                          HandleType type) {
  JAX_SYMM_RETURN_IF_ERROR(CheckDevice(device));
  JAX_SYMM_ASSIGN_OR_RETURN(uint64_t granularity, Granularity(device));
  JAX_SYMM_RETURN_IF_ERROR(CheckMultiple("an allocation", nbytes, granularity));
  auto allocation = CudaAllocation::Create(api_, device, nbytes, type);
  if (!allocation.ok() && allocation.status().code() == StatusCode::kResourceExhausted) {
    return OutOfMemory(device, nbytes, allocation.status());
  }
  return allocation;
}

Status CudaBackend::OutOfMemory(int device, uint64_t nbytes, const Status& cause) {
  std::string free_text = "unknown";
  if (auto info = MemoryInfo(device); info.ok()) free_text = StrCat(info->first);
  return ResourceExhausted(
      cause.message(), ". Asked for ", nbytes, " bytes, free on GPU ", device, ": ", free_text,
      ". JAX preallocates most of a GPU: set XLA_PYTHON_CLIENT_MEM_FRACTION lower (for example "
      "0.6) or XLA_PYTHON_CLIENT_PREALLOCATE=false, so that symmetric memory finds room");
}

StatusOr<std::shared_ptr<Allocation>> CudaBackend::ImportFd(int device, int fd, uint64_t nbytes) {
  JAX_SYMM_ASSIGN_OR_RETURN(auto handle,
                            ImportDriverFd(*api_, fd, StrCat(nbytes, " bytes of GPU memory")));
  return std::shared_ptr<Allocation>(
      std::make_shared<CudaAllocation>(api_, handle, device, nbytes));
}

StatusOr<std::shared_ptr<Allocation>> CudaBackend::ImportFabric(int device,
                                                                const std::string& fabric,
                                                                uint64_t nbytes) {
  JAX_SYMM_ASSIGN_OR_RETURN(
      auto handle, ImportDriverFabric(*api_, fabric, StrCat(nbytes, " bytes of GPU memory")));
  return std::shared_ptr<Allocation>(
      std::make_shared<CudaAllocation>(api_, handle, device, nbytes));
}

StatusOr<std::shared_ptr<Mapping>> CudaBackend::Map(std::shared_ptr<Allocation> allocation,
                                                    std::span<const int> devices) {
  auto* memory = dynamic_cast<CudaAllocation*>(allocation.get());
  if (memory == nullptr) return InvalidArgument("the allocation is not of the CUDA backend");
  JAX_SYMM_ASSIGN_OR_RETURN(
      auto range, MappedRange::Create(api_, memory->handle(), memory->nbytes(), /*alignment=*/0,
                                      allocation, devices));
  return std::shared_ptr<Mapping>(std::make_shared<CudaMapping>(std::move(range)));
}

Status CudaBackend::Zero(int device, const Mapping& mapping, uint64_t offset, uint64_t nbytes) {
  JAX_SYMM_ASSIGN_OR_RETURN(uint64_t end, CheckedAdd(offset, nbytes));
  if (end > mapping.nbytes()) {
    return InvalidArgument("zeroing bytes ", offset, " to ", end, " of a mapping of ",
                           mapping.nbytes());
  }
  JAX_SYMM_ASSIGN_OR_RETURN(driver::Context context, ContextOf(device));
  ScopedContext scope(*api_);
  JAX_SYMM_RETURN_IF_ERROR(scope.Enter(context));
  JAX_SYMM_RETURN_IF_ERROR(
      driver::Call(*api_, api_->cuMemsetD8, StrCat("zeroing ", nbytes, " bytes on GPU ", device),
                   mapping.address().value + offset, (unsigned char)0, nbytes));
  // A memset is asynchronous to the host; a synchronised device has written it for every peer.
  return driver::Call(*api_, api_->cuCtxSynchronize, StrCat("of GPU ", device));
}

Status CudaBackend::Synchronize(int device) {
  JAX_SYMM_ASSIGN_OR_RETURN(driver::Context context, ContextOf(device));
  ScopedContext scope(*api_);
  JAX_SYMM_RETURN_IF_ERROR(scope.Enter(context));
  return driver::Call(*api_, api_->cuCtxSynchronize, StrCat("of GPU ", device));
}

StatusOr<DeviceFacts> CudaBackend::Facts(int device) const {
  JAX_SYMM_RETURN_IF_ERROR(CheckDevice(device));
  JAX_SYMM_ASSIGN_OR_RETURN(bool vmm, Attribute(device, driver::kVirtualMemorySupported));
  if (!vmm) {
    return Unimplemented("GPU ", device,
                         " has no virtual memory management, so its memory cannot "
                         "be shared with peers");
  }
  DeviceFacts facts;
  driver::Uuid uuid{};
  JAX_SYMM_RETURN_IF_ERROR(
      driver::Call(*api_, api_->cuDeviceGetUuid, StrCat("of GPU ", device), &uuid, device));
  facts.uuid = UuidText(uuid);
  JAX_SYMM_ASSIGN_OR_RETURN(facts.posix_fd, Attribute(device, driver::kPosixFdSupported));
  JAX_SYMM_ASSIGN_OR_RETURN(facts.fabric, Attribute(device, driver::kFabricSupported));
  if (api_->HasMulticast()) {
    JAX_SYMM_ASSIGN_OR_RETURN(facts.multicast, Attribute(device, driver::kMulticastSupported));
  }
  return facts;
}

StatusOr<bool> CudaBackend::CanAccess(int device, int peer) const {
  if (device == peer) return true;
  int value = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuDeviceCanAccessPeer,
                                        StrCat("from GPU ", device, " to GPU ", peer), &value,
                                        device, peer));
  return value != 0;
}

StatusOr<std::pair<uint64_t, uint64_t>> CudaBackend::MemoryInfo(int device) {
  JAX_SYMM_ASSIGN_OR_RETURN(driver::Context context, ContextOf(device));
  ScopedContext scope(*api_);
  JAX_SYMM_RETURN_IF_ERROR(scope.Enter(context));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuMemGetInfo, StrCat("of GPU ", device),
                                        &free_bytes, &total_bytes));
  return std::pair<uint64_t, uint64_t>(free_bytes, total_bytes);
}

Status CudaBackend::CopyToDevice(int device, uint64_t address, const void* host, uint64_t nbytes) {
  JAX_SYMM_ASSIGN_OR_RETURN(driver::Context context, ContextOf(device));
  ScopedContext scope(*api_);
  JAX_SYMM_RETURN_IF_ERROR(scope.Enter(context));
  return driver::Call(*api_, api_->cuMemcpyHtoD, StrCat("of ", nbytes, " bytes"), address, host,
                      nbytes);
}

Status CudaBackend::CopyToHost(int device, void* host, uint64_t address, uint64_t nbytes) {
  JAX_SYMM_ASSIGN_OR_RETURN(driver::Context context, ContextOf(device));
  ScopedContext scope(*api_);
  JAX_SYMM_RETURN_IF_ERROR(scope.Enter(context));
  return driver::Call(*api_, api_->cuMemcpyDtoH, StrCat("of ", nbytes, " bytes"), host, address,
                      nbytes);
}

Status CudaBackend::ProbeFabric(int device) {
  JAX_SYMM_ASSIGN_OR_RETURN(uint64_t nbytes, Granularity(device));
  JAX_SYMM_ASSIGN_OR_RETURN(auto memory,
                            CudaAllocation::Create(api_, device, nbytes, HandleType::kFabric));
  JAX_SYMM_ASSIGN_OR_RETURN(std::string handle, memory->ExportFabric());
  return ImportFabric(device, handle, nbytes).status();
}

StatusOr<uint64_t> CudaBackend::MulticastGranularity(int num_devices) const {
  const driver::MulticastProp prop{
      .num_devices = static_cast<unsigned>(num_devices),
      .size = kGranularityProbeBytes,
      .handle_types = driver::kHandleTypePosixFd,
      .flags = 0,
  };
  size_t granularity = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuMulticastGetGranularity,
                                        StrCat("for ", num_devices, " devices"), &granularity,
                                        &prop, driver::kGranularityMinimum));
  if (granularity == 0) return Internal("the driver answers a multicast granularity of 0");
  return uint64_t{granularity};
}

StatusOr<std::shared_ptr<MulticastObject>> CudaBackend::CreateMulticast(int num_devices,
                                                                        uint64_t nbytes,
                                                                        HandleType type) {
  JAX_SYMM_ASSIGN_OR_RETURN(uint64_t granularity, MulticastGranularity(num_devices));
  JAX_SYMM_RETURN_IF_ERROR(CheckMultiple("a multicast object", nbytes, granularity));
  return CudaMulticastObject::Create(api_, num_devices, nbytes, type);
}

StatusOr<std::shared_ptr<MulticastObject>> CudaBackend::ImportMulticastFd(int fd, uint64_t nbytes) {
  JAX_SYMM_ASSIGN_OR_RETURN(auto handle, ImportDriverFd(*api_, fd, "a multicast object"));
  return std::shared_ptr<MulticastObject>(
      std::make_shared<CudaMulticastObject>(api_, handle, nbytes));
}

StatusOr<std::shared_ptr<MulticastObject>> CudaBackend::ImportMulticastFabric(
    const std::string& fabric, uint64_t nbytes) {
  JAX_SYMM_ASSIGN_OR_RETURN(auto handle, ImportDriverFabric(*api_, fabric, "a multicast object"));
  return std::shared_ptr<MulticastObject>(
      std::make_shared<CudaMulticastObject>(api_, handle, nbytes));
}

StatusOr<std::shared_ptr<MulticastBinding>> CudaBackend::BindMulticast(
    std::shared_ptr<MulticastObject> object, uint64_t offset,
    std::shared_ptr<Allocation> allocation, std::chrono::nanoseconds deadline) {
  auto target = std::dynamic_pointer_cast<CudaMulticastObject>(object);
  auto memory = std::dynamic_pointer_cast<CudaAllocation>(allocation);
  if (target == nullptr || memory == nullptr) {
    return InvalidArgument("the object or the allocation is not of the CUDA backend");
  }
  JAX_SYMM_ASSIGN_OR_RETURN(uint64_t end, CheckedAdd(offset, memory->nbytes()));
  if (end > target->nbytes()) {
    return InvalidArgument("binding bytes ", offset, " to ", end, " of a multicast object of ",
                           target->nbytes());
  }
  JAX_SYMM_ASSIGN_OR_RETURN(driver::Context context, ContextOf(memory->device()));
  return RunBlocking<std::shared_ptr<MulticastBinding>>(
      StrCat("cuMulticastBindMem for GPU ", memory->device()), deadline,
      [api = api_, context, target, offset,
       memory]() -> StatusOr<std::shared_ptr<MulticastBinding>> {
        ScopedContext scope(*api);
        JAX_SYMM_RETURN_IF_ERROR(scope.Enter(context));
        return CudaMulticastBinding::Create(target, offset, memory);
      });
}

StatusOr<std::shared_ptr<MulticastMapping>> CudaBackend::MapMulticast(
    std::shared_ptr<MulticastObject> object, std::span<const int> devices,
    std::chrono::nanoseconds deadline) {
  auto target = std::dynamic_pointer_cast<CudaMulticastObject>(object);
  if (target == nullptr) return InvalidArgument("the object is not of the CUDA backend");
  if (devices.empty()) return InvalidArgument("mapping a multicast object for no device");
  JAX_SYMM_ASSIGN_OR_RETURN(driver::Context context, ContextOf(devices[0]));
  // A power of two that divides the size: as large as the object's own pages can ask for.
  const uint64_t alignment = std::min(target->nbytes() & -target->nbytes(), kMaxAlignment);
  return RunBlocking<std::shared_ptr<MulticastMapping>>(
      StrCat("cuMemMap of ", target->nbytes(), " bytes of multicast"), deadline,
      [api = api_, context, target, alignment,
       list = std::vector<int>(devices.begin(),
                               devices.end())]() -> StatusOr<std::shared_ptr<MulticastMapping>> {
        ScopedContext scope(*api);
        JAX_SYMM_RETURN_IF_ERROR(scope.Enter(context));
        JAX_SYMM_ASSIGN_OR_RETURN(
            auto range,
            MappedRange::Create(api, target->handle(), target->nbytes(), alignment, target, list));
        return std::shared_ptr<MulticastMapping>(
            std::make_shared<CudaMulticastMapping>(std::move(range)));
      });
}

}  // namespace jax_symm

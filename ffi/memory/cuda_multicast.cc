#include "memory/cuda_multicast.h"

namespace jax_symm {

CudaMulticastObject::CudaMulticastObject(std::shared_ptr<const driver::Api> api,
                                         driver::MemHandle handle, uint64_t nbytes)
    : handle_(std::move(api), handle, StrCat("a multicast object of ", nbytes, " bytes")),
      nbytes_(nbytes) {}

StatusOr<std::shared_ptr<MulticastObject>> CudaMulticastObject::Create(
    std::shared_ptr<const driver::Api> api, int num_devices, uint64_t nbytes, HandleType type) {
  const driver::MulticastProp prop{
      .num_devices = static_cast<unsigned>(num_devices),
      .size = nbytes,
      .handle_types = static_cast<unsigned long long>(DriverHandleType(type)),
      .flags = 0};
  driver::MemHandle handle = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(
      *api, api->cuMulticastCreate,
      StrCat("creating a multicast object of ", nbytes, " bytes for ", num_devices, " devices"),
      &handle, &prop));
  return std::shared_ptr<MulticastObject>(
      std::make_shared<CudaMulticastObject>(std::move(api), handle, nbytes));
}

Status CudaMulticastObject::AddDevice(int device) {
  return driver::Call(*api(), api()->cuMulticastAddDevice,
                      StrCat("joining GPU ", device, " to ", handle_.what()), handle(), device);
}

StatusOr<std::shared_ptr<MulticastBinding>> CudaMulticastBinding::Create(
    std::shared_ptr<CudaMulticastObject> object, uint64_t offset,
    std::shared_ptr<CudaAllocation> allocation) {
  const driver::Api& api = *object->api();
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(api, api.cuMulticastBindMem,
                                        StrCat("binding ", allocation->nbytes(), " bytes of GPU ",
                                               allocation->device(), " at offset ", offset),
                                        object->handle(), offset, allocation->handle(), size_t{0},
                                        allocation->nbytes(), 0ULL));
  return std::shared_ptr<MulticastBinding>(
      new CudaMulticastBinding(std::move(object), offset, std::move(allocation)));
}

CudaMulticastBinding::CudaMulticastBinding(std::shared_ptr<CudaMulticastObject> object,
                                           uint64_t offset,
                                           std::shared_ptr<CudaAllocation> allocation)
    : object_(std::move(object)), offset_(offset), allocation_(std::move(allocation)) {}

CudaMulticastBinding::~CudaMulticastBinding() {
  const driver::Api& api = *object_->api();
  if (!api.Usable()) return;
  // The driver wants back exactly what was bound.
  const Status unbound =
      driver::Call(api, api.cuMulticastUnbind,
                   StrCat("unbinding ", allocation_->nbytes(), " bytes at offset ", offset_),
                   object_->handle(), allocation_->device(), offset_, allocation_->nbytes());
  if (unbound.ok()) return;
  ReportTeardown(unbound);
  Quarantine("memory that could not be unbound from its multicast object",
             {std::move(object_), std::move(allocation_)});
}

}  // namespace jax_symm

#include "memory/reservation.h"

namespace jax_symm {

StatusOr<std::shared_ptr<Reservation>> Reservation::Create(std::shared_ptr<const driver::Api> api,
                                                           uint64_t nbytes, uint64_t alignment) {
  driver::DevicePtr address = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api, api->cuMemAddressReserve,
                                        StrCat("reserving ", nbytes, " bytes"), &address, nbytes,
                                        alignment, driver::DevicePtr{0}, 0ULL));
  return std::shared_ptr<Reservation>(new Reservation(std::move(api), address, nbytes));
}

Reservation::Reservation(std::shared_ptr<const driver::Api> api, driver::DevicePtr address,
                         uint64_t nbytes)
    : api_(std::move(api)), address_(address), nbytes_(nbytes) {}

Reservation::~Reservation() {
  if (!api_->Usable()) return;
  ReportTeardown(driver::Call(*api_, api_->cuMemAddressFree,
                              StrCat("giving back a range of ", nbytes_, " bytes"), address_,
                              nbytes_));
}

}  // namespace jax_symm

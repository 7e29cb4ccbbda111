// An address range of this process, reserved with the driver.
#pragma once

#include <memory>

#include "driver/driver_api.h"
#include "memory/ledger.h"

namespace jax_symm {

class Reservation {
 public:
  static StatusOr<std::shared_ptr<Reservation>> Create(std::shared_ptr<const driver::Api> api,
                                                       uint64_t nbytes, uint64_t alignment);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  driver::DevicePtr address() const { return address_; }
  uint64_t nbytes() const { return nbytes_; }

 private:
  Reservation(std::shared_ptr<const driver::Api> api, driver::DevicePtr address, uint64_t nbytes);

  std::shared_ptr<const driver::Api> api_;
  driver::DevicePtr address_;
  uint64_t nbytes_;
  LedgerEntry entry_{Resource::kReservation};
};

}  // namespace jax_symm

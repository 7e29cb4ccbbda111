// The primary context of a GPU, the one that JAX uses: retained, and made current for a scope.
#pragma once

#include <memory>

#include "driver/driver_api.h"

namespace jax_symm {

class PrimaryContext {
 public:
  static StatusOr<std::unique_ptr<PrimaryContext>> Retain(std::shared_ptr<const driver::Api> api,
                                                          int device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  driver::Context get() const { return context_; }

 private:
  PrimaryContext(std::shared_ptr<const driver::Api> api, int device, driver::Context context);

  std::shared_ptr<const driver::Api> api_;
  int device_;
  driver::Context context_;
};

/// Makes a context current on this thread for a scope, and puts back what was current.
class ScopedContext {
 public:
  explicit ScopedContext(const driver::Api& api) : api_(api) {}
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  Status Enter(driver::Context context);

 private:
  const driver::Api& api_;
  driver::Context previous_ = nullptr;
  bool entered_ = false;
};

}  // namespace jax_symm

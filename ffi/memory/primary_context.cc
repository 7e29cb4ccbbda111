#include "memory/primary_context.h"

#include <utility>

#include "memory/ledger.h"

namespace jax_symm {

StatusOr<std::unique_ptr<PrimaryContext>> PrimaryContext::Retain(
    std::shared_ptr<const driver::Api> api, int device) {
  driver::Context context = nullptr;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api, api->cuDevicePrimaryCtxRetain,
                                        StrCat("for GPU ", device), &context, device));
  return std::unique_ptr<PrimaryContext>(new PrimaryContext(std::move(api), device, context));
}

PrimaryContext::PrimaryContext(std::shared_ptr<const driver::Api> api, int device,
                               driver::Context context)
    : api_(std::move(api)), device_(device), context_(context) {}

PrimaryContext::~PrimaryContext() {
  if (!api_->Usable()) return;
  ReportTeardown(
      driver::Call(*api_, api_->cuDevicePrimaryCtxRelease, StrCat("for GPU ", device_), device_));
}

Status ScopedContext::Enter(driver::Context context) {
  JAX_SYMM_RETURN_IF_ERROR(
      driver::Call(api_, api_.cuCtxGetCurrent, "saving the current context", &previous_));
  entered_ = true;
  return driver::Call(api_, api_.cuCtxSetCurrent, "entering a primary context", context);
}

ScopedContext::~ScopedContext() {
  if (!entered_ || !api_.Usable()) return;
  ReportTeardown(
      driver::Call(api_, api_.cuCtxSetCurrent, "restoring the current context", previous_));
}

}  // namespace jax_symm

#include "python/bind.h"

namespace nb = nanobind;

namespace jax_symm {
namespace {

const char* ClassName(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "SymmValueError";
    case StatusCode::kFailedPrecondition:
      return "SymmStateError";
    case StatusCode::kResourceExhausted:
      return "SymmMemoryError";
    case StatusCode::kUnimplemented:
      return "SymmUnsupportedError";
    case StatusCode::kUnavailable:
    case StatusCode::kPermissionDenied:
      return "SymmUnavailableError";
    case StatusCode::kDeadlineExceeded:
      return "SymmTimeoutError";
    case StatusCode::kAborted:
      return "SymmPeerLostError";
    default:
      return "SymmInternalError";
  }
}

}  // namespace

void ThrowStatus(const Status& status) {
  nb::object type = nb::module_::import_("jax_symm.errors").attr(ClassName(status.code()));
  nb::object error = type(status.message());
  error.attr("code") = static_cast<int>(status.code());
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace jax_symm

// Status codes to the classes of jax_symm.errors, looked up when the first error leaves.
#include "python/bindings.h"

namespace jax_symm {
namespace {

const char* ErrorClassName(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "SymmValueError";
    case StatusCode::kDeadlineExceeded:
      return "SymmTimeoutError";
    case StatusCode::kResourceExhausted:
      return "SymmMemoryError";
    case StatusCode::kFailedPrecondition:
      return "SymmStateError";
    case StatusCode::kAborted:
      return "SymmPeerLostError";
    case StatusCode::kUnimplemented:
      return "SymmUnsupportedError";
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnavailable:
      return "SymmUnavailableError";
    case StatusCode::kOk:
    case StatusCode::kInternal:
      return "SymmInternalError";
  }
  return "SymmInternalError";
}

void RaiseAsPython(const StatusError& error) {
  try {
    nb::object type = nb::module_::import_("jax_symm.errors").attr(ErrorClassName(error.code()));
    nb::object value = type(error.what());
    nb::setattr(value, "code", nb::int_(static_cast<int>(error.code())));
    PyErr_SetObject(type.ptr(), value.ptr());
  } catch (nb::python_error& import_error) {
    import_error.restore();
  }
}

}  // namespace

void BindErrors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      RaiseAsPython(error);
    }
  });
}

}  // namespace jax_symm

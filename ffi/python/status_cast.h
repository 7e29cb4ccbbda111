// From Status to a Python exception. ffi/python is the only folder that throws.
#pragma once

#include <exception>
#include <utility>

#include "base/status.h"

namespace jax_symm {

/// Leaves C++ as the class of its code in jax_symm.errors, with the code as attribute `code`.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return status_.message().c_str(); }
  StatusCode code() const { return status_.code(); }

 private:
  Status status_;
};

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}

template <typename T>
T ValueOrThrow(StatusOr<T> result) {
  if (!result.ok()) throw StatusError(result.status());
  return *std::move(result);
}

}  // namespace jax_symm

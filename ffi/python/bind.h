// What every binding needs: errors as the exceptions of jax_symm.errors, work without the GIL, and
// references that Python can let go at a moment of its choosing.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "base/status.h"

namespace jax_symm {

/// Throws the class of jax_symm.errors that belongs to the code; its attribute `code` is the
/// number of the StatusCode, so that no decision ever parses a text.
[[noreturn]] void ThrowStatus(const Status& status);

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) ThrowStatus(status);
}

template <typename T>
T ValueOrThrow(StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

/// Runs `call`, which returns a StatusOr, with the GIL released.
template <typename F>
auto Unlocked(F call) {
  return ValueOrThrow([&] {
    nanobind::gil_scoped_release released;
    return call();
  }());
}

/// The same for a `call` that returns a Status.
template <typename F>
void UnlockedStatus(F call) {
  ThrowIfError([&]() -> Status {
    nanobind::gil_scoped_release released;
    return call();
  }());
}

/// A reference held by Python. Dropping it may unmap or wait, so that happens without the GIL, and
/// early, by release(), where the order of teardown matters.
template <typename T>
class Holder {
 public:
  explicit Holder(std::shared_ptr<T> object) : object_(std::move(object)) {}
  Holder(Holder&& other) noexcept = default;
  Holder& operator=(Holder&&) = delete;
  ~Holder() { Drop(); }

  const std::shared_ptr<T>& get() const {
    if (object_ == nullptr) ThrowStatus(FailedPrecondition("this handle was released"));
    return object_;
  }
  T* operator->() const { return get().get(); }
  void Drop() {
    if (object_ == nullptr) return;
    nanobind::gil_scoped_release released;
    object_.reset();
  }

 private:
  std::shared_ptr<T> object_;
};

}  // namespace jax_symm

// What the binding files share. The only folder with nanobind.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "python/status_cast.h"

namespace jax_symm {

namespace nb = nanobind;

/// Drops `object` without the GIL: unmapping may wait for the device, the device for another rank,
/// and that rank's launch for the GIL.
template <typename T>
void DropWithoutGil(std::shared_ptr<T> object) {
  if (object == nullptr || !PyGILState_Check()) return;
  nb::gil_scoped_release without_gil;
  object.reset();
}

/// A reference to a native object that Python can drop by name: unmapping then happens at a known
/// place, not when a collector finds the time.
template <typename T>
class Held {
 public:
  explicit Held(std::shared_ptr<T> object) : object_(std::move(object)) {}
  ~Held() { DropWithoutGil(std::move(object_)); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  std::shared_ptr<T> get() const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (object_ == nullptr) throw StatusError(FailedPrecondition("the object was released"));
    return object_;
  }

  void Release() {
    std::shared_ptr<T> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      dropped.swap(object_);
    }
    DropWithoutGil(std::move(dropped));
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<T> object_;
};

template <typename T>
std::unique_ptr<Held<T>> Hold(std::shared_ptr<T> object) {
  return std::make_unique<Held<T>>(std::move(object));
}

/// Binds Held<T> under `name`, with `release()`.
template <typename T>
nb::class_<Held<T>> BindHeld(nb::module_& module, const char* name, const char* doc) {
  return nb::class_<Held<T>>(module, name, doc)
      .def("release", &Held<T>::Release, "Drops this reference. Idempotent.");
}

/// The fabric handle of memory or of a multicast object.
template <typename T>
nb::bytes ExportFabric(const T& object) {
  std::string handle;
  {
    nb::gil_scoped_release without_gil;
    handle = ValueOrThrow(object.ExportFabric());
  }
  return nb::bytes(handle.data(), handle.size());
}

void BindErrors(nb::module_& module);
void BindMemory(nb::module_& module);
void BindRuntime(nb::module_& module);
/// In bind_cuda_memory.cc.
void BindCudaMemory(nb::module_& module);
/// In bind_cuda_runtime.cc.
void BindCudaRuntime(nb::module_& module);

}  // namespace jax_symm

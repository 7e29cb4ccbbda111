// The embedded kernels, loaded into the driver and made ready on devices.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "dispatch/gemm_config.h"
#include "driver/driver_api.h"

namespace jax_symm {

/// Thread-safe. Nothing is loaded lazily: once a device is prepared, looking a kernel up and
/// launching it allocates nothing, as it must while another rank may be waiting on that device.
class KernelLibrary {
 public:
  static StatusOr<std::shared_ptr<KernelLibrary>> Load(std::shared_ptr<const driver::Api> api,
                                                       Arch arch);
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  /// Loads every kernel on `device`, whose context is current, and sets its attributes.
  Status Prepare(int device);

  StatusOr<driver::Kernel> Find(const std::string& name) const;

  const driver::Api& api() const { return *api_; }
  Arch arch() const { return arch_; }

 private:
  KernelLibrary(std::shared_ptr<const driver::Api> api, Arch arch)
      : api_(std::move(api)), arch_(arch) {}
  Status LoadImages();

  std::shared_ptr<const driver::Api> api_;
  Arch arch_;
  std::vector<driver::Library> libraries_;
  struct LoadedKernel {
    driver::Kernel kernel;
    uint32_t shared_bytes;
  };
  std::map<std::string, LoadedKernel, std::less<>> kernels_;
  std::mutex mutex_;
  std::set<int> prepared_;
};

}  // namespace jax_symm

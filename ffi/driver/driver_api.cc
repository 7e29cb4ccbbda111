#include "driver/driver_api.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/log.h"

namespace jax_symm::driver {
namespace {

using GetProcAddress = Result(const char* symbol, void** function, int version, uint64_t flags,
                              int* query_result);

constexpr char kSystemLibrary[] = "libcuda.so.1";

template <typename Signature>
void Resolve(GetProcAddress* get_proc_address, Entry<Signature>& entry) {
  void* function = nullptr;
  int query_result = 0;
  const Result result =
      get_proc_address(entry.name, &function, entry.version, /*flags=*/0, &query_result);
  if (result == kSuccess) entry.function = reinterpret_cast<Signature*>(function);
}

[[noreturn]] void AbortBecauseOf(const char* name) {
  std::fprintf(stderr,
               "jax_symm: %s was called through a driver table that forbids multicast. This is a "
               "bug: no multicast object may be made on this host.\n",
               name);
  std::abort();
}

Result RefuseGranularity(size_t*, const MulticastProp*, int) { return kNotSupported; }
Result AbortCreate(MemHandle*, const MulticastProp*) { AbortBecauseOf("cuMulticastCreate"); }
Result AbortAddDevice(MemHandle, Device) { AbortBecauseOf("cuMulticastAddDevice"); }
Result AbortBindMem(MemHandle, size_t, MemHandle, size_t, size_t, unsigned long long) {
  AbortBecauseOf("cuMulticastBindMem");
}
Result AbortUnbind(MemHandle, Device, size_t, size_t) { AbortBecauseOf("cuMulticastUnbind"); }

void ForbidMulticast(Api& api) {
  api.cuMulticastGetGranularity.function = RefuseGranularity;
  api.cuMulticastCreate.function = AbortCreate;
  api.cuMulticastAddDevice.function = AbortAddDevice;
  api.cuMulticastBindMem.function = AbortBindMem;
  api.cuMulticastUnbind.function = AbortUnbind;
}

StatusOr<GetProcAddress*> OpenLibrary(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Unimplemented("cannot load the CUDA driver '", path, "': ", dlerror(),
                         "; install an NVIDIA driver or use CPU devices");
  }
  void* symbol = dlsym(library, "cuGetProcAddress_v2");
  if (symbol == nullptr) {
    return Unimplemented("'", path, "' has no cuGetProcAddress_v2; a driver for CUDA 12.0 or ",
                         "newer is needed");
  }
  return reinterpret_cast<GetProcAddress*>(symbol);
}

}  // namespace

std::string Api::Describe(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName.function != nullptr) cuGetErrorName.function(result, &name);
  if (cuGetErrorString.function != nullptr) cuGetErrorString.function(result, &text);
  return StrCat(name != nullptr ? name : "CUresult", " (", result, ")",
                text != nullptr ? StrCat(": ", text) : "");
}

bool Api::Usable() const { return getpid() == process && !ProcessIsExiting(); }

bool Api::HasMulticast() const {
  bool all = multicast == Multicast::kAllowed;
#define JAX_SYMM_DRIVER_PRESENT(name, version, parameters) all = all && name.function != nullptr;
  JAX_SYMM_DRIVER_MULTICAST_FUNCTIONS(JAX_SYMM_DRIVER_PRESENT)
#undef JAX_SYMM_DRIVER_PRESENT
  return all;
}

StatusCode CodeOf(Result result) {
  switch (result) {
    case kSuccess:
      return StatusCode::kOk;
    case kOutOfMemory:
      return StatusCode::kResourceExhausted;
    case kNotPermitted:
      return StatusCode::kPermissionDenied;
    case kSystemNotReady:
      return StatusCode::kUnavailable;
    case kNotSupported:
      return StatusCode::kUnimplemented;
    case kInvalidValue:
      return StatusCode::kInvalidArgument;
    case kNotInitialized:
    case kDeinitialized:
    case kIllegalState:
      return StatusCode::kFailedPrecondition;
    default:
      return StatusCode::kInternal;
  }
}

StatusOr<std::shared_ptr<const Api>> LoadApi(const std::string& library_path, Multicast multicast) {
  auto api = std::make_shared<Api>();
  api->origin = library_path.empty() ? kSystemLibrary : library_path;
  api->multicast = multicast;
  api->process = getpid();
  JAX_SYMM_ASSIGN_OR_RETURN(GetProcAddress * get_proc_address, OpenLibrary(api->origin));
#define JAX_SYMM_DRIVER_RESOLVE(name, version, parameters) Resolve(get_proc_address, api->name);
  JAX_SYMM_DRIVER_FUNCTIONS(JAX_SYMM_DRIVER_RESOLVE)
#undef JAX_SYMM_DRIVER_RESOLVE
  if (multicast == Multicast::kAbort) ForbidMulticast(*api);
  JAX_SYMM_RETURN_IF_ERROR(Call(*api, api->cuInit, "while the driver was loaded", 0U));
  return std::shared_ptr<const Api>(std::move(api));
}

}  // namespace jax_symm::driver

// The CUDA driver as a table of functions: every one that is used is listed once, with the driver
// version that brought the form we call. Nothing links libcuda; a table is loaded with dlopen and
// cuGetProcAddress, from a path that can be replaced (a fake driver, another installation).
//
// An entry that a driver lacks stays null and is only reached through Call(), which answers
// UNIMPLEMENTED for it.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "driver/driver_abi.h"

namespace jax_symm::driver {

// X(name, version, parameters): the CUDA version (1000 * major + 10 * minor) selects the ABI.
#define JAX_SYMM_DRIVER_CORE_FUNCTIONS(X)                                                          \
  X(cuInit, 2000, (unsigned flags))                                                                \
  X(cuDriverGetVersion, 2020, (int* version))                                                      \
  X(cuGetErrorName, 6000, (Result error, const char** text))                                       \
  X(cuGetErrorString, 6000, (Result error, const char** text))                                     \
  X(cuDeviceGet, 2000, (Device * device, int ordinal))                                             \
  X(cuDeviceGetCount, 2000, (int* count))                                                          \
  X(cuDeviceGetAttribute, 2000, (int* value, DeviceAttribute attribute, Device device))            \
  X(cuDeviceGetUuid, 11040, (Uuid * uuid, Device device))                                          \
  X(cuDeviceCanAccessPeer, 4000, (int* can_access, Device device, Device peer))                    \
  X(cuDevicePrimaryCtxRetain, 7000, (Context * context, Device device))                            \
  X(cuDevicePrimaryCtxRelease, 11000, (Device device))                                             \
  X(cuCtxGetCurrent, 4000, (Context * context))                                                    \
  X(cuCtxSetCurrent, 4000, (Context context))                                                      \
  X(cuCtxSynchronize, 2000, ())                                                                    \
  X(cuMemGetInfo, 3020, (size_t* free_bytes, size_t* total_bytes))                                 \
  X(cuMemsetD8, 3020, (DevicePtr address, unsigned char value, size_t nbytes))                     \
  X(cuMemcpyDtoH, 3020, (void* host, DevicePtr address, size_t nbytes))                            \
  X(cuMemcpyHtoD, 3020, (DevicePtr address, const void* host, size_t nbytes))                      \
  X(cuMemGetAllocationGranularity, 10020,                                                          \
    (size_t* granularity, const AllocationProp* prop, int option))                                 \
  X(cuMemCreate, 10020,                                                                            \
    (MemHandle * handle, size_t nbytes, const AllocationProp* prop, unsigned long long))           \
  X(cuMemRelease, 10020, (MemHandle handle))                                                       \
  X(cuMemExportToShareableHandle, 10020,                                                           \
    (void* shareable, MemHandle handle, int type, unsigned long long flags))                       \
  X(cuMemImportFromShareableHandle, 10020, (MemHandle * handle, void* shareable, int type))        \
  X(cuMemAddressReserve, 10020,                                                                    \
    (DevicePtr * address, size_t nbytes, size_t alignment, DevicePtr hint,                         \
     unsigned long long flags))                                                                    \
  X(cuMemAddressFree, 10020, (DevicePtr address, size_t nbytes))                                   \
  X(cuMemMap, 10020,                                                                               \
    (DevicePtr address, size_t nbytes, size_t offset, MemHandle handle, unsigned long long flags)) \
  X(cuMemUnmap, 10020, (DevicePtr address, size_t nbytes))                                         \
  X(cuMemSetAccess, 10020, (DevicePtr address, size_t nbytes, const AccessDesc* desc, size_t count))

#define JAX_SYMM_DRIVER_MULTICAST_FUNCTIONS(X)                                          \
  X(cuMulticastGetGranularity, 12010,                                                   \
    (size_t* granularity, const MulticastProp* prop, int option))                       \
  X(cuMulticastCreate, 12010, (MemHandle * handle, const MulticastProp* prop))          \
  X(cuMulticastAddDevice, 12010, (MemHandle handle, Device device))                     \
  X(cuMulticastBindMem, 12010,                                                          \
    (MemHandle handle, size_t multicast_offset, MemHandle memory, size_t memory_offset, \
     size_t nbytes, unsigned long long flags))                                          \
  X(cuMulticastUnbind, 12010,                                                           \
    (MemHandle handle, Device device, size_t multicast_offset, size_t nbytes))

#define JAX_SYMM_DRIVER_LAUNCH_FUNCTIONS(X)                                                      \
  X(cuLibraryLoadData, 12000,                                                                    \
    (Library * library, const void* code, int* jit_options, void** jit_values, unsigned num_jit, \
     int* options, void** values, unsigned num_options))                                         \
  X(cuLibraryUnload, 12000, (Library library))                                                   \
  X(cuLibraryGetKernel, 12000, (Kernel * kernel, Library library, const char* name))             \
  X(cuKernelGetAttribute, 12000, (int* value, int attribute, Kernel kernel, Device device))      \
  X(cuKernelSetAttribute, 12000, (int attribute, int value, Kernel kernel, Device device))       \
  X(cuKernelGetFunction, 12000, (void** function, Kernel kernel))                                \
  X(cuLaunchKernelEx, 11060,                                                                     \
    (const LaunchConfig* config, Kernel kernel, void** parameters, void** extra))                \
  X(cuOccupancyMaxActiveClusters, 11070,                                                         \
    (int* clusters, Kernel kernel, const LaunchConfig* config))                                  \
  X(cuTensorMapEncodeTiled, 12000,                                                               \
    (TensorMap * map, int type, uint32_t rank, void* address, const uint64_t* dims,              \
     const uint64_t* strides_bytes, const uint32_t* box, const uint32_t* element_strides,        \
     int interleave, int swizzle, int promotion, int out_of_bounds))                             \
  X(cuMemHostAlloc, 2020, (void** host, size_t nbytes, unsigned flags))                          \
  X(cuMemFreeHost, 2000, (void* host))                                                           \
  X(cuMemHostGetDevicePointer, 3020, (DevicePtr * address, void* host, unsigned flags))          \
  X(cuEventCreate, 2000, (Event * event, unsigned flags))                                        \
  X(cuEventDestroy, 4000, (Event event))                                                         \
  X(cuEventRecord, 2000, (Event event, Stream stream))                                           \
  X(cuEventQuery, 2000, (Event event))                                                           \
  X(cuEventSynchronize, 2000, (Event event))                                                     \
  X(cuStreamWaitEvent, 3020, (Stream stream, Event event, unsigned flags))                       \
  X(cuStreamIsCapturing, 10000, (Stream stream, int* status))

#define JAX_SYMM_DRIVER_FUNCTIONS(X)  \
  JAX_SYMM_DRIVER_CORE_FUNCTIONS(X)   \
  JAX_SYMM_DRIVER_LAUNCH_FUNCTIONS(X) \
  JAX_SYMM_DRIVER_MULTICAST_FUNCTIONS(X)

template <typename Signature>
struct Entry {
  const char* name = "";
  int version = 0;
  Signature* function = nullptr;
};

/// What may be called through a table.
enum class Multicast {
  kAllowed,
  /// Every cuMulticast* entry that acts prints a message and aborts the process. For GPUs that
  /// others share: a multicast object there can put the host's GPUs out of service, so a careless
  /// call must not reach the driver whatever the environment says. Granularities are refused with
  /// a status, and the device attribute reads as 0, so correct code never comes near.
  kAbort,
};

struct Api {
#define JAX_SYMM_DRIVER_ENTRY(name, version, parameters) \
  Entry<Result parameters> name{#name, version, nullptr};
  JAX_SYMM_DRIVER_FUNCTIONS(JAX_SYMM_DRIVER_ENTRY)
#undef JAX_SYMM_DRIVER_ENTRY

  /// The library that the entries came from.
  std::string origin;
  Multicast multicast = Multicast::kAllowed;
  /// The process that loaded it. The driver does not survive a fork.
  int process = 0;

  /// The driver's name and text for a result, "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
  std::string Describe(Result result) const;
  /// False in a forked child, and while the process exits: deleters then leave the driver alone.
  bool Usable() const;
  /// True when the driver has every multicast entry and the table may use them.
  bool HasMulticast() const;
};

/// Loads `library_path`, or the system's driver when it is empty, and calls cuInit.
/// The library stays loaded for the life of the process.
StatusOr<std::shared_ptr<const Api>> LoadApi(const std::string& library_path, Multicast multicast);

/// The code for a driver result. Three are told apart because decisions hang on them:
/// RESOURCE_EXHAUSTED only for OUT_OF_MEMORY, PERMISSION_DENIED only for NOT_PERMITTED,
/// UNAVAILABLE only for SYSTEM_NOT_READY.
StatusCode CodeOf(Result result);

/// Calls an entry and turns its answer into a Status that names the function, the driver's text
/// and `detail`.
template <typename... Parameters, typename... Args>
Status Call(const Api& api, const Entry<Result(Parameters...)>& entry, const std::string& detail,
            Args... args) {
  if (entry.function == nullptr) {
    return Unimplemented("the driver ", api.origin, " has no ", entry.name, " (it came with CUDA ",
                         entry.version / 1000, ".", entry.version % 1000 / 10, "); ", detail);
  }
  if (!api.Usable()) {
    return FailedPrecondition(entry.name, " refused: this process was forked from one that had ",
                              "initialised CUDA, or is exiting; ", detail);
  }
  const Result result = entry.function(args...);
  if (result == kSuccess) return OkStatus();
  return MakeStatus(CodeOf(result), entry.name, " failed with ", api.Describe(result), "; ",
                    detail);
}

}  // namespace jax_symm::driver

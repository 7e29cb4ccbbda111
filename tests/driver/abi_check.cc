// Compiles only if driver_abi.h says what cuda.h says.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "driver/driver_api.h"

namespace jax_symm::driver {

static_assert(sizeof(AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProp, requested_handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProp, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(MulticastProp) == sizeof(CUmulticastObjectProp));
static_assert(offsetof(MulticastProp, size) == offsetof(CUmulticastObjectProp, size));
static_assert(offsetof(MulticastProp, handle_types) ==
              offsetof(CUmulticastObjectProp, handleTypes));
static_assert(sizeof(FabricHandle) == sizeof(CUmemFabricHandle));
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(sizeof(MemHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(DevicePtr) == sizeof(CUdeviceptr) && sizeof(Device) == sizeof(CUdevice));

static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(kDeinitialized == CUDA_ERROR_DEINITIALIZED && kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kInvalidDevice == CUDA_ERROR_INVALID_DEVICE);
static_assert(kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kPeerAccessUnsupported == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
static_assert(kInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(kIllegalState == CUDA_ERROR_ILLEGAL_STATE);
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kNotPermitted == CUDA_ERROR_NOT_PERMITTED);
static_assert(kNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(kSystemNotReady == CUDA_ERROR_SYSTEM_NOT_READY);

static_assert(kVirtualMemorySupported ==
              int{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED});
static_assert(kPosixFdSupported ==
              int{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED});
static_assert(kFabricSupported == int{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED});
static_assert(kMulticastSupported == int{CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED});
static_assert(kHandleTypePosixFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kHandleTypeFabric == CU_MEM_HANDLE_TYPE_FABRIC);
static_assert(kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

/// Functions of as many parameters, of the same sizes and kinds.
template <typename Ours, typename Theirs>
struct SameAbi : std::false_type {};
template <typename R, typename... Ours, typename S, typename... Theirs>
struct SameAbi<R(Ours...), S(Theirs...)>
    : std::bool_constant<sizeof(R) == sizeof(S) && sizeof...(Ours) == sizeof...(Theirs)> {
  static_assert(((sizeof(Ours) == sizeof(Theirs)) && ...));
  static_assert(((std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> ||
                  std::is_same_v<Ours, DevicePtr> || std::is_same_v<Ours, MemHandle> ||
                  std::is_pointer_v<Ours>) &&
                 ...));
};

#define JAX_SYMM_SAME_ABI(name, version, parameters) \
  static_assert(SameAbi<Result parameters, decltype(::name)>::value, #name);
JAX_SYMM_DRIVER_FUNCTIONS(JAX_SYMM_SAME_ABI)

}  // namespace jax_symm::driver

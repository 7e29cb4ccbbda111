// The part of the CUDA driver's ABI that is used here, declared so that the package builds without
// a CUDA toolkit. tests/driver/abi_check.cc compares it with cuda.h where there is one.
// Source: cuda.h of CUDA 13.0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jax_symm::driver {

/// CUresult. Not an enum class: a driver may answer numbers that are not listed.
using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kPeerAccessUnsupported = 217;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kIllegalState = 401;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kSystemNotReady = 802;

using Device = int;
using Context = void*;
using DevicePtr = uint64_t;
using MemHandle = uint64_t;

struct Uuid {
  char bytes[16];
};

enum DeviceAttribute : int {
  kVirtualMemorySupported = 102,
  kPosixFdSupported = 103,
  kFabricSupported = 128,
  kMulticastSupported = 132,
};

inline constexpr unsigned kHandleTypeNone = 0;
inline constexpr unsigned kHandleTypePosixFd = 1;
inline constexpr unsigned kHandleTypeFabric = 8;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;
inline constexpr int kGranularityRecommended = 1;

struct MemLocation {
  int type;
  int id;
};

struct AllocationProp {
  int type;
  int requested_handle_types;
  MemLocation location;
  void* win32_meta_data;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDesc {
  MemLocation location;
  int flags;
};

struct MulticastProp {
  unsigned num_devices;
  size_t size;
  unsigned long long handle_types;
  unsigned long long flags;
};

struct FabricHandle {
  unsigned char data[64];
};

static_assert(sizeof(void*) == 8 && sizeof(int) == 4, "the CUDA driver's 64-bit ABI");

}  // namespace jax_symm::driver

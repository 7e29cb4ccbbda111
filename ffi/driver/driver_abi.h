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
inline constexpr Result kNotReady = 600;
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
  kMultiprocessorCount = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
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

// What it takes to load kernels and launch them.
using Library = void*;
using Kernel = void*;
using Stream = void*;
using Event = void*;

inline constexpr int kMaxDynamicSharedBytes = 8;  // CUfunction_attribute
inline constexpr int kNumRegisters = 4;
inline constexpr int kLocalBytes = 3;
inline constexpr int kLaunchClusterDimension = 4;  // CUlaunchAttributeID
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostAllocMapped = 2;
inline constexpr int kStreamCaptureNone = 0;

struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
  } value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};

/// CUtensorMap: opaque, passed to kernels by value.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

inline constexpr int kTensorFloat16 = 6;  // CUtensorMapDataType
inline constexpr int kTensorBfloat16 = 9;
inline constexpr int kTensorSwizzle128B = 3;
inline constexpr int kTensorPromotion256B = 3;

static_assert(sizeof(LaunchAttribute) == 72);
static_assert(sizeof(LaunchConfig) == 56);

static_assert(sizeof(void*) == 8 && sizeof(int) == 4, "the CUDA driver's 64-bit ABI");

}  // namespace jax_symm::driver

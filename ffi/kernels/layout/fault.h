// What a launch says when it cannot go on: a verdict that is the same on all ranks, and a record
// of what this rank saw. Shared by kernels and by the host that turns it into an error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout/host_device.h"

namespace jax_symm {

enum class FaultKind : uint8_t {
  kNone = 0,
  kTimeout = 1,    // a peer did not arrive in time
  kOtherCall = 2,  // a peer made another call where this one was due
  kWrongRank = 3,  // the mesh puts this device at another index of the axis
  kPeerLost = 4,   // the host learned that a peer's process has ended
};

/// What a wait was for.
enum class Awaited : uint32_t {
  kNothing = 0,
  kPreviousLaunch = 1,  // a peer's done word
  kPartial = 2,         // a source's flag of a tile
  kResult = 3,          // an owner's flag of a slice of the result
};

/// A flag names the launch that raised it: its epoch, and which call it was.
inline constexpr int kCallBits = 24;
inline constexpr uint64_t kCallMask = (uint64_t{1} << kCallBits) - 1;

JAX_SYMM_HOST_DEVICE constexpr uint64_t MakeFlag(uint64_t epoch, uint32_t call) {
  return epoch << kCallBits | (call & kCallMask);
}
JAX_SYMM_HOST_DEVICE constexpr uint64_t FlagEpoch(uint64_t flag) { return flag >> kCallBits; }
JAX_SYMM_HOST_DEVICE constexpr uint32_t FlagCall(uint64_t flag) {
  return static_cast<uint32_t>(flag & kCallMask);
}

/// Fits one word, so that a single compare-and-swap settles which verdict all ranks report.
struct Verdict {
  FaultKind kind;
  uint32_t reporter;
  uint32_t blamed;
  uint64_t epoch;
};

JAX_SYMM_HOST_DEVICE constexpr uint64_t PackVerdict(const Verdict& v) {
  return v.epoch << 24 | static_cast<uint64_t>(v.blamed) << 16 |
         static_cast<uint64_t>(v.reporter) << 8 | static_cast<uint64_t>(v.kind);
}
JAX_SYMM_HOST_DEVICE constexpr Verdict UnpackVerdict(uint64_t word) {
  return {static_cast<FaultKind>(word & 0xff), static_cast<uint32_t>(word >> 8 & 0xff),
          static_cast<uint32_t>(word >> 16 & 0xff), word >> 24};
}

/// What one rank saw when it gave up. For kWrongRank, `seen` is the index of the axis and `wanted`
/// the workspace's rank; else they are flags (a done word counts epochs alone).
struct Observation {
  Awaited awaited;
  uint32_t peer;
  uint32_t tile;
  uint64_t seen;
  uint64_t wanted;
};

/// In pinned host memory, one for each rank of a workspace; zeroed by the host. `verdict` is
/// stored last. An observation with awaited == kNothing and a verdict of another reporter means
/// that this rank only heard of the fault.
struct LaunchRecord {
  uint64_t verdict;
  Observation observation;
};
static_assert(offsetof(LaunchRecord, verdict) == 0);
static_assert(offsetof(LaunchRecord, observation) == 8);
static_assert(offsetof(Observation, seen) == 16);
static_assert(sizeof(LaunchRecord) == 40);

}  // namespace jax_symm

// The verbs of symmetric memory. The ranks' conversation (who creates, who imports, who votes) is
// Python's; a backend only does what it is told and reports what happened. Two backends: host
// (memfd, for CPU devices) and CUDA (driver VMM).
//
// Every object has one deleter and owns what it is built from, so teardown order is structural:
// a Mapping keeps its allocation and its address range alive.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace jax_symm {

/// kNone: for memory that never leaves this process.
enum class HandleType { kPosixFd, kFabric, kNone };

/// Physical memory of one device, created here or imported from a peer.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual uint64_t nbytes() const = 0;
  /// A descriptor (close-on-exec) that a peer on this host can import.
  virtual StatusOr<UniqueFd> ExportFd() const = 0;
  /// An opaque handle that a peer in the same NVLink domain can import.
  virtual StatusOr<std::string> ExportFabric() const = 0;
};

/// An allocation made visible at an address of this process.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual UnicastAddress address() const = 0;
  virtual uint64_t nbytes() const = 0;
};

/// What the devices of a group share to multicast through: an NVLink switch resource, scarce, held
/// from the moment its last device has joined until its last reference in any process is gone.
class MulticastObject {
 public:
  virtual ~MulticastObject() = default;
  virtual uint64_t nbytes() const = 0;
  virtual StatusOr<UniqueFd> ExportFd() const = 0;
  virtual StatusOr<std::string> ExportFabric() const = 0;
  /// Joins a device of this process, once. Does not wait for the others.
  virtual Status AddDevice(int device) = 0;
};

/// Memory of one device made part of a multicast object. Ends before the memory does.
class MulticastBinding {
 public:
  virtual ~MulticastBinding() = default;
};

/// A whole multicast object made visible at an address of this process.
class MulticastMapping {
 public:
  virtual ~MulticastMapping() = default;
  virtual MulticastAddress address() const = 0;
  virtual uint64_t nbytes() const = 0;
};

/// What one device can do, as far as attributes tell. Necessary, not sufficient.
struct DeviceFacts {
  std::string uuid;
  bool posix_fd = false;
  bool fabric = false;
  bool multicast = false;
};

/// `device` is the backend's own ordinal (CUDA ordinal; ignored on the host).
class MemoryBackend {
 public:
  virtual ~MemoryBackend() = default;
  virtual const char* name() const = 0;

  /// Sizes of allocations are multiples of this.
  virtual StatusOr<uint64_t> Granularity(int device) const = 0;
  virtual StatusOr<std::shared_ptr<Allocation>> Create(int device, uint64_t nbytes,
                                                       HandleType type) = 0;
  /// Takes no ownership of `fd`.
  virtual StatusOr<std::shared_ptr<Allocation>> ImportFd(int device, int fd, uint64_t nbytes) = 0;
  virtual StatusOr<std::shared_ptr<Allocation>> ImportFabric(int device, const std::string& handle,
                                                             uint64_t nbytes) = 0;
  /// Reserves a range, maps the whole allocation there and grants read-write access to `devices`.
  virtual StatusOr<std::shared_ptr<Mapping>> Map(std::shared_ptr<Allocation> allocation,
                                                 std::span<const int> devices) = 0;
  /// Zeroes [offset, offset + nbytes) and returns when the zeros are visible to every peer.
  virtual Status Zero(int device, const Mapping& mapping, uint64_t offset, uint64_t nbytes) = 0;
  /// Waits for all work of this process on `device`.
  virtual Status Synchronize(int device) = 0;

  virtual StatusOr<DeviceFacts> Facts(int device) const;
  /// Whether loads and stores of `device` reach memory of `peer`, both of this process.
  virtual StatusOr<bool> CanAccess(int device, int peer) const;

  // Multicast. The conversation owes BindMulticast and MapMulticast one thing: they are called only
  // after every device of the object has joined, because they wait for that without a time-out.
  // They run on a helper thread; past `deadline` they answer DEADLINE_EXCEEDED, and whatever the
  // stuck call holds is quarantined: counted, and never freed.

  /// Sizes and offsets in multicast objects of `num_devices` devices are multiples of this.
  virtual StatusOr<uint64_t> MulticastGranularity(int num_devices) const;
  virtual StatusOr<std::shared_ptr<MulticastObject>> CreateMulticast(int num_devices,
                                                                     uint64_t nbytes,
                                                                     HandleType type);
  /// Takes no ownership of `fd`.
  virtual StatusOr<std::shared_ptr<MulticastObject>> ImportMulticastFd(int fd, uint64_t nbytes);
  virtual StatusOr<std::shared_ptr<MulticastObject>> ImportMulticastFabric(
      const std::string& handle, uint64_t nbytes);
  /// Makes the whole allocation reachable at [offset, offset + its size) of the object.
  virtual StatusOr<std::shared_ptr<MulticastBinding>> BindMulticast(
      std::shared_ptr<MulticastObject> object, uint64_t offset,
      std::shared_ptr<Allocation> allocation, std::chrono::nanoseconds deadline);
  /// Maps the whole object, once, with access for `devices`.
  virtual StatusOr<std::shared_ptr<MulticastMapping>> MapMulticast(
      std::shared_ptr<MulticastObject> object, std::span<const int> devices,
      std::chrono::nanoseconds deadline);
};

}  // namespace jax_symm

#include "memory/host_backend.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "base/log.h"

namespace jax_symm {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 46;  // below the 47-bit user address space

uint64_t PageBytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

/// The errors of memfd, mmap and friends that have a remedy get one; the rest are ours.
Status ErrnoStatus(int error, const std::string& what) {
  const std::string text = StrCat(what, " failed: ", std::strerror(error));
  switch (error) {
    case ENOMEM:
    case ENOSPC:
      return ResourceExhausted(text, "; free memory, or open a smaller workspace");
    case EMFILE:
    case ENFILE:
      return ResourceExhausted(text, "; raise the limit on open files (ulimit -n)");
    case EPERM:
    case EACCES:
      return MakeStatus(StatusCode::kPermissionDenied, text);
    case ENOSYS:
      return Unavailable(text, "; Linux 3.17 or newer is needed");
    default:
      return Internal(text);
  }
}

class HostAllocation final : public Allocation {
 public:
  HostAllocation(UniqueFd fd, uint64_t nbytes) : fd_(std::move(fd)), nbytes_(nbytes) {}

  uint64_t nbytes() const override { return nbytes_; }
  int fd() const { return fd_.get(); }

  StatusOr<UniqueFd> ExportFd() const override {
    UniqueFd copy(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      return ErrnoStatus(errno, StrCat("export of a host allocation of ", nbytes_, " bytes (dup)"));
    }
    return copy;
  }

  StatusOr<std::string> ExportFabric() const override {
    return Unimplemented("host memory has no fabric handle; export a file descriptor");
  }

 private:
  const UniqueFd fd_;
  const uint64_t nbytes_;
};

/// A range of addresses, and whatever is mapped in it.
class AddressRange {
 public:
  AddressRange(void* base, uint64_t nbytes) : base_(base), nbytes_(nbytes) {}
  AddressRange(AddressRange&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), nbytes_(other.nbytes_) {}
  AddressRange& operator=(AddressRange&&) = delete;
  ~AddressRange() {
    if (base_ != nullptr && munmap(base_, nbytes_) != 0) {
      Log(LogLevel::kError, StrCat("munmap of ", nbytes_, " bytes: ", std::strerror(errno)));
    }
  }

  static StatusOr<AddressRange> Reserve(uint64_t nbytes) {
    void* base =
        mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return ErrnoStatus(errno, StrCat("reserving ", nbytes, " bytes of addresses (mmap)"));
    }
    return AddressRange(base, nbytes);
  }

  char* base() const { return static_cast<char*>(base_); }
  uint64_t nbytes() const { return nbytes_; }

 private:
  void* base_;
  uint64_t nbytes_;
};

class HostMapping final : public Mapping {
 public:
  HostMapping(std::shared_ptr<Allocation> allocation, AddressRange range)
      : allocation_(std::move(allocation)), range_(std::move(range)) {}

  UnicastAddress address() const override { return {reinterpret_cast<uint64_t>(range_.base())}; }
  uint64_t nbytes() const override { return range_.nbytes(); }

 private:
  const std::shared_ptr<Allocation> allocation_;
  const AddressRange range_;
};

Status CheckSize(const char* what, uint64_t nbytes) {
  if (nbytes == 0 || nbytes % PageBytes() != 0 || nbytes > kMaxBytes) {
    return InvalidArgument(what, ": got ", nbytes, " bytes, expected a positive multiple of ",
                           PageBytes(), " up to ", kMaxBytes);
  }
  return OkStatus();
}

class HostBackend final : public MemoryBackend {
 public:
  const char* name() const override { return "host"; }

  StatusOr<uint64_t> Granularity(int /*device*/) const override { return PageBytes(); }

  StatusOr<std::shared_ptr<Allocation>> Create(int device, uint64_t nbytes,
                                               HandleType type) override {
    JAX_SYMM_RETURN_IF_ERROR(CheckSize("create", nbytes));
    if (type == HandleType::kFabric) {
      return Unimplemented("host memory has no fabric handles (device ", device,
                           "); ask for POSIX_FD");
    }
    const std::string what = StrCat("allocating ", nbytes, " bytes of host memory");
    UniqueFd fd(memfd_create("jax_symm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) return ErrnoStatus(errno, what + " (memfd_create)");
    if (ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0) {
      return ErrnoStatus(errno, what + " (ftruncate)");
    }
    // A peer holds this descriptor; without the seals it could shrink the file, and our next load
    // would be a SIGBUS.
    if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return ErrnoStatus(errno, what + " (sealing)");
    }
    return std::shared_ptr<Allocation>(std::make_shared<HostAllocation>(std::move(fd), nbytes));
  }

  StatusOr<std::shared_ptr<Allocation>> ImportFd(int device, int fd, uint64_t nbytes) override {
    JAX_SYMM_RETURN_IF_ERROR(CheckSize("import", nbytes));
    UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      if (errno == EBADF) {
        return InvalidArgument("import for device ", device, ": ", fd,
                               " is not an open descriptor");
      }
      return ErrnoStatus(errno, "import of host memory (dup)");
    }
    const int seals = fcntl(copy.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      return InvalidArgument("import for device ", device, ": descriptor ", fd,
                             " is not symmetric host memory (no sealed memfd)");
    }
    struct stat info;
    if (fstat(copy.get(), &info) != 0) return ErrnoStatus(errno, "import of host memory (fstat)");
    if (static_cast<uint64_t>(info.st_size) != nbytes) {
      return InvalidArgument("import for device ", device, ": the peer's allocation has ",
                             info.st_size, " bytes, expected ", nbytes);
    }
    return std::shared_ptr<Allocation>(std::make_shared<HostAllocation>(std::move(copy), nbytes));
  }

  StatusOr<std::shared_ptr<Allocation>> ImportFabric(int device, const std::string& /*handle*/,
                                                     uint64_t /*nbytes*/) override {
    return Unimplemented("host memory has no fabric handles (device ", device,
                         "); import a file descriptor");
  }

  StatusOr<std::shared_ptr<Mapping>> Map(std::shared_ptr<Allocation> allocation,
                                         std::span<const int> /*devices*/) override {
    const auto* host = dynamic_cast<const HostAllocation*>(allocation.get());
    if (host == nullptr) {
      return InvalidArgument("map: the allocation does not belong to the host backend");
    }
    JAX_SYMM_ASSIGN_OR_RETURN(AddressRange range, AddressRange::Reserve(host->nbytes()));
    void* mapped = mmap(range.base(), range.nbytes(), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, host->fd(), 0);
    if (mapped == MAP_FAILED) {
      return ErrnoStatus(errno, StrCat("mapping ", range.nbytes(), " bytes of host memory (mmap)"));
    }
    return std::shared_ptr<Mapping>(
        std::make_shared<HostMapping>(std::move(allocation), std::move(range)));
  }

  Status Zero(int device, const Mapping& mapping, uint64_t offset, uint64_t nbytes) override {
    JAX_SYMM_ASSIGN_OR_RETURN(const uint64_t end, CheckedAdd(offset, nbytes));
    if (end > mapping.nbytes()) {
      return InvalidArgument("zero on device ", device, ": [", offset, ", ", end,
                             ") is outside of a mapping of ", mapping.nbytes(), " bytes");
    }
    char* base = reinterpret_cast<char*>(mapping.address().value);
    // Whole pages are given back (they read as zeros again) rather than written, so that zeroing
    // a large buffer commits no memory.
    JAX_SYMM_ASSIGN_OR_RETURN(const uint64_t first, CheckedRoundUp(offset, PageBytes()));
    const uint64_t last = end / PageBytes() * PageBytes();
    if (first >= last || madvise(base + first, last - first, MADV_REMOVE) != 0) {
      std::memset(base + offset, 0, nbytes);
      return OkStatus();
    }
    std::memset(base + offset, 0, first - offset);
    std::memset(base + last, 0, end - last);
    return OkStatus();
  }

  /// XLA's CPU programs are waited for by their arrays; the backend itself queues nothing.
  Status Synchronize(int /*device*/) override { return OkStatus(); }
};

}  // namespace

std::shared_ptr<MemoryBackend> MakeHostBackend() { return std::make_shared<HostBackend>(); }

}  // namespace jax_symm

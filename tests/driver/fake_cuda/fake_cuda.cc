// A CUDA driver without a GPU: the entry points of libcuda, each a request to the server that
// FAKE_CUDA_SERVER names. Memory is mapped here from descriptors that the server hands out, so
// bytes move; addresses of multicast objects are reserved but may not be touched.
//
// Environment, read at cuInit: FAKE_CUDA_SERVER (socket), FAKE_CUDA_PROCESS (a name for scripts),
// CUDA_VISIBLE_DEVICES, FAKE_CUDA_DOMAIN (NVLink domain). FAKE_CUDA_VERSION (13000) is the driver's
// version: entries that came later are missing.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "driver/driver_abi.h"
#include "fake_launch.h"

namespace {

using namespace jax_symm::driver;

constexpr Result kUnknown = 999;

struct Request {
  char call[32] = {};
  uint64_t args[8] = {};
  char data[64] = {};
};
struct Answer {
  int32_t result;
  uint32_t has_fd;
  uint64_t values[4];
  char data[64];
};
static_assert(sizeof(Request) == 160 && sizeof(Answer) == 104);

/// Sends one packet and waits for its answer. A descriptor may ride in either direction.
bool Exchange(int socket, const Request& request, int fd_out, Answer* answer, int* fd_in) {
  iovec out{const_cast<Request*>(&request), sizeof(request)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &out;
  message.msg_iovlen = 1;
  if (fd_out >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd_out, sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != sizeof(request)) return false;
  iovec in{answer, sizeof(*answer)};
  alignas(cmsghdr) char received[CMSG_SPACE(sizeof(int))] = {};
  msghdr reply{};
  reply.msg_iov = &in;
  reply.msg_iovlen = 1;
  reply.msg_control = received;
  reply.msg_controllen = sizeof(received);
  ssize_t count;
  do {
    count = recvmsg(socket, &reply, MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count != sizeof(*answer)) return false;
  if (cmsghdr* header = CMSG_FIRSTHDR(&reply); header != nullptr && fd_in != nullptr) {
    std::memcpy(fd_in, CMSG_DATA(header), sizeof(int));
  }
  return true;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// The connections of this process: as many as calls were ever open at once.
class Connections {
 public:
  int Take() {
    std::lock_guard lock(mutex_);
    if (lifeline_ < 0) lifeline_ = Open(/*lifeline=*/true);
    if (lifeline_ < 0) return -1;
    if (idle_.empty()) return Open(/*lifeline=*/false);
    const int socket = idle_.back();
    idle_.pop_back();
    return socket;
  }
  void GiveBack(int socket) {
    std::lock_guard lock(mutex_);
    idle_.push_back(socket);
  }

 private:
  static int Open(bool lifeline) {
    const std::string path = Environment("FAKE_CUDA_SERVER");
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    Request hello;
    std::strcpy(hello.call, "hello");
    hello.args[0] = static_cast<uint64_t>(getpid());
    hello.args[1] = lifeline;
    const std::string text = Environment("FAKE_CUDA_PROCESS") + "|" +
                             Environment("CUDA_VISIBLE_DEVICES") + "|" +
                             Environment("FAKE_CUDA_DOMAIN");
    std::strncpy(hello.data, text.c_str(), sizeof(hello.data) - 1);
    Answer answer;
    if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        !Exchange(socket, hello, -1, &answer, nullptr)) {
      close(socket);
      return -1;
    }
    return socket;
  }

  std::mutex mutex_;
  int lifeline_ = -1;
  std::vector<int> idle_;
};

Connections& TheConnections() {
  static Connections* connections = new Connections;
  return *connections;
}

Result Send(Request& request, Answer* answer, int fd_out = -1, int* fd_in = nullptr) {
  const int socket = TheConnections().Take();
  if (socket < 0) return kNotInitialized;
  if (!Exchange(socket, request, fd_out, answer, fd_in)) return kUnknown;
  TheConnections().GiveBack(socket);
  return answer->result;
}

template <typename... Args>
Request MakeRequest(const char* call, Args... args) {
  Request request;
  std::strncpy(request.call, call, sizeof(request.call) - 1);
  const uint64_t values[] = {static_cast<uint64_t>(args)..., 0};
  std::memcpy(request.args, values, sizeof...(args) * sizeof(uint64_t));
  return request;
}

/// A call that gives back nothing but its result.
template <typename... Args>
Result Ask(const char* call, Args... args) {
  Request request = MakeRequest(call, args...);
  Answer answer;
  return Send(request, &answer);
}

/// A call that gives back one number.
template <typename T, typename... Args>
Result AskFor(T* value, const char* call, Args... args) {
  Request request = MakeRequest(call, args...);
  Answer answer;
  const Result result = Send(request, &answer);
  if (result == kSuccess) *value = static_cast<T>(answer.values[0]);
  return result;
}

thread_local Context t_current = nullptr;
constexpr uintptr_t kContextBase = 0x1000;

int Ordinal(Context context) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(context) - kContextBase);
}

void* Pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }

}  // namespace

Result Report(const char* call) { return Ask(call); }

Result ReportLaunch(uint32_t rank, const LaunchConfig& config, const char* kernel) {
  const unsigned cluster = config.num_attributes > 0 ? config.attributes[0].value.cluster.x : 1;
  Request request = MakeRequest("cuLaunchKernelEx", rank, config.grid_x, cluster, config.block_x);
  std::strncpy(request.data, kernel, sizeof(request.data) - 1);
  Answer answer;
  return Send(request, &answer);
}

extern "C" {

Result cuInit(unsigned) { return Ask("cuInit"); }

Result cuDriverGetVersion(int* version) {
  const std::string text = Environment("FAKE_CUDA_VERSION");
  *version = text.empty() ? 13000 : std::atoi(text.c_str());
  return kSuccess;
}

Result cuGetErrorName(Result error, const char** text) {
  static const std::map<Result, const char*> names = {
      {1, "CUDA_ERROR_INVALID_VALUE"},      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {101, "CUDA_ERROR_INVALID_DEVICE"},   {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
      {400, "CUDA_ERROR_INVALID_HANDLE"},   {401, "CUDA_ERROR_ILLEGAL_STATE"},
      {800, "CUDA_ERROR_NOT_PERMITTED"},    {801, "CUDA_ERROR_NOT_SUPPORTED"},
      {802, "CUDA_ERROR_SYSTEM_NOT_READY"}, {999, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(error);
  if (found == names.end()) return kInvalidValue;
  *text = found->second;
  return kSuccess;
}

Result cuGetErrorString(Result, const char** text) {
  *text = "a fault of the fake driver";
  return kSuccess;
}

Result cuDeviceGetCount(int* count) { return AskFor(count, "cuDeviceGetCount"); }
Result cuDeviceGet(Device* device, int ordinal) { return AskFor(device, "cuDeviceGet", ordinal); }
Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Device device) {
  return AskFor(value, "cuDeviceGetAttribute", attribute, device);
}
Result cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  Request request = MakeRequest("cuDeviceGetUuid", device);
  Answer answer;
  const Result result = Send(request, &answer);
  if (result == kSuccess) std::memcpy(uuid->bytes, answer.data, sizeof(uuid->bytes));
  return result;
}
Result cuDeviceCanAccessPeer(int* can_access, Device device, Device peer) {
  return AskFor(can_access, "cuDeviceCanAccessPeer", device, peer);
}

Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  uint64_t value = 0;
  const Result result = AskFor(&value, "cuDevicePrimaryCtxRetain", device);
  if (result == kSuccess) *context = Pointer(value);
  return result;
}
Result cuDevicePrimaryCtxRelease_v2(Device device) {
  return Ask("cuDevicePrimaryCtxRelease", device);
}
Result cuCtxGetCurrent(Context* context) {
  const Result result = Ask("cuCtxGetCurrent");
  if (result == kSuccess) *context = t_current;
  return result;
}
Result cuCtxSetCurrent(Context context) {
  const Result result = Ask("cuCtxSetCurrent");
  if (result == kSuccess) t_current = context;
  return result;
}
Result cuCtxSynchronize() {
  return t_current == nullptr ? kInvalidContext : Ask("cuCtxSynchronize", Ordinal(t_current));
}
Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  if (t_current == nullptr) return kInvalidContext;
  Request request = MakeRequest("cuMemGetInfo", Ordinal(t_current));
  Answer answer;
  const Result result = Send(request, &answer);
  if (result == kSuccess) {
    *free_bytes = answer.values[0];
    *total_bytes = answer.values[1];
  }
  return result;
}

Result cuMemsetD8_v2(DevicePtr address, unsigned char value, size_t nbytes) {
  if (t_current == nullptr) return kInvalidContext;
  const Result result = Ask("cuMemsetD8", address, nbytes);
  if (result == kSuccess) std::memset(Pointer(address), value, nbytes);
  return result;
}
Result cuMemcpyDtoH_v2(void* host, DevicePtr address, size_t nbytes) {
  if (t_current == nullptr) return kInvalidContext;
  const Result result = Ask("cuMemcpyDtoH", address, nbytes);
  if (result == kSuccess) std::memcpy(host, Pointer(address), nbytes);
  return result;
}
Result cuMemcpyHtoD_v2(DevicePtr address, const void* host, size_t nbytes) {
  if (t_current == nullptr) return kInvalidContext;
  const Result result = Ask("cuMemcpyHtoD", address, nbytes);
  if (result == kSuccess) std::memcpy(Pointer(address), host, nbytes);
  return result;
}

Result cuMemGetAllocationGranularity(size_t* granularity, const AllocationProp* prop, int) {
  return AskFor(granularity, "cuMemGetAllocationGranularity", prop->location.id);
}
Result cuMemCreate(MemHandle* handle, size_t nbytes, const AllocationProp* prop,
                   unsigned long long) {
  return AskFor(handle, "cuMemCreate", nbytes, prop->location.id, prop->requested_handle_types);
}
Result cuMemRelease(MemHandle handle) { return Ask("cuMemRelease", handle); }

Result cuMemExportToShareableHandle(void* shareable, MemHandle handle, int type,
                                    unsigned long long) {
  Request request = MakeRequest("cuMemExportToShareableHandle", handle, type);
  Answer answer;
  int fd = -1;
  const Result result = Send(request, &answer, -1, &fd);
  if (result != kSuccess) return result;
  if (type == static_cast<int>(kHandleTypeFabric)) {
    std::memcpy(shareable, answer.data, sizeof(answer.data));
  } else {
    *static_cast<int*>(shareable) = fd;
  }
  return kSuccess;
}
Result cuMemImportFromShareableHandle(MemHandle* handle, void* shareable, int type) {
  Request request = MakeRequest("cuMemImportFromShareableHandle", type);
  int fd = -1;
  if (type == static_cast<int>(kHandleTypeFabric)) {
    std::memcpy(request.data, shareable, sizeof(request.data));
  } else {
    fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  }
  Answer answer;
  const Result result = Send(request, &answer, fd);
  if (result == kSuccess) *handle = answer.values[0];
  return result;
}

Result cuMemAddressReserve(DevicePtr* address, size_t nbytes, size_t, DevicePtr,
                           unsigned long long) {
  void* range =
      mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return kOutOfMemory;
  const Result result = Ask("cuMemAddressReserve", reinterpret_cast<uint64_t>(range), nbytes);
  if (result != kSuccess) {
    munmap(range, nbytes);
    return result;
  }
  *address = reinterpret_cast<DevicePtr>(range);
  return kSuccess;
}
Result cuMemAddressFree(DevicePtr address, size_t nbytes) {
  const Result result = Ask("cuMemAddressFree", address, nbytes);
  if (result == kSuccess) munmap(Pointer(address), nbytes);
  return result;
}

Result cuMemMap(DevicePtr address, size_t nbytes, size_t offset, MemHandle handle,
                unsigned long long) {
  Request request = MakeRequest("cuMemMap", address, nbytes, offset, handle);
  Answer answer;
  int memfd = -1;
  const Result result = Send(request, &answer, -1, &memfd);
  if (result != kSuccess || memfd < 0) return result;
  mmap(Pointer(address), nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memfd, 0);
  close(memfd);
  return kSuccess;
}
Result cuMemUnmap(DevicePtr address, size_t nbytes) {
  const Result result = Ask("cuMemUnmap", address, nbytes);
  if (result == kSuccess) {
    mmap(Pointer(address), nbytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  return result;
}
Result cuMemSetAccess(DevicePtr address, size_t nbytes, const AccessDesc* desc, size_t count) {
  Request request =
      MakeRequest("cuMemSetAccess", address, nbytes, count > 0 ? desc[0].flags : 0, count);
  for (size_t i = 0; i < count; ++i) {  // a bit a device
    const auto id = static_cast<unsigned>(desc[i].location.id);
    if (id < 8 * sizeof(request.data)) request.data[id / 8] |= static_cast<char>(1 << id % 8);
  }
  Answer answer;
  const Result result = Send(request, &answer);
  if (result == kSuccess && answer.values[0] != 0) {
    mprotect(Pointer(address), nbytes, PROT_READ | PROT_WRITE);
  }
  return result;
}

Result cuMulticastGetGranularity(size_t* granularity, const MulticastProp* prop, int option) {
  return AskFor(granularity, "cuMulticastGetGranularity", prop->num_devices, option);
}
Result cuMulticastCreate(MemHandle* handle, const MulticastProp* prop) {
  return AskFor(handle, "cuMulticastCreate", prop->num_devices, prop->size, prop->handle_types);
}
Result cuMulticastAddDevice(MemHandle handle, Device device) {
  return Ask("cuMulticastAddDevice", handle, device);
}
Result cuMulticastBindMem(MemHandle handle, size_t multicast_offset, MemHandle memory,
                          size_t memory_offset, size_t nbytes, unsigned long long) {
  if (t_current == nullptr) return kInvalidContext;
  return Ask("cuMulticastBindMem", handle, multicast_offset, memory, memory_offset, nbytes);
}
Result cuMulticastUnbind(MemHandle handle, Device device, size_t multicast_offset, size_t nbytes) {
  return Ask("cuMulticastUnbind", handle, device, multicast_offset, nbytes);
}

Result cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* query_result) {
  struct Symbol {
    int since;
    void* function;
  };
#define FAKE_CUDA_SYMBOL(name, since)               \
  {                                                 \
    #name, { since, reinterpret_cast<void*>(name) } \
  }
#define FAKE_CUDA_SYMBOL_V2(name, since)                 \
  {                                                      \
    #name, { since, reinterpret_cast<void*>(name##_v2) } \
  }
  static const std::map<std::string, Symbol> symbols = {
      FAKE_CUDA_SYMBOL(cuInit, 2000),
      FAKE_CUDA_SYMBOL(cuDriverGetVersion, 2020),
      FAKE_CUDA_SYMBOL(cuGetErrorName, 6000),
      FAKE_CUDA_SYMBOL(cuGetErrorString, 6000),
      FAKE_CUDA_SYMBOL(cuDeviceGet, 2000),
      FAKE_CUDA_SYMBOL(cuDeviceGetCount, 2000),
      FAKE_CUDA_SYMBOL(cuDeviceGetAttribute, 2000),
      FAKE_CUDA_SYMBOL_V2(cuDeviceGetUuid, 11040),
      FAKE_CUDA_SYMBOL(cuDeviceCanAccessPeer, 4000),
      FAKE_CUDA_SYMBOL(cuDevicePrimaryCtxRetain, 7000),
      FAKE_CUDA_SYMBOL_V2(cuDevicePrimaryCtxRelease, 11000),
      FAKE_CUDA_SYMBOL(cuCtxGetCurrent, 4000),
      FAKE_CUDA_SYMBOL(cuCtxSetCurrent, 4000),
      FAKE_CUDA_SYMBOL(cuCtxSynchronize, 2000),
      FAKE_CUDA_SYMBOL_V2(cuMemGetInfo, 3020),
      FAKE_CUDA_SYMBOL_V2(cuMemsetD8, 3020),
      FAKE_CUDA_SYMBOL_V2(cuMemcpyDtoH, 3020),
      FAKE_CUDA_SYMBOL_V2(cuMemcpyHtoD, 3020),
      FAKE_CUDA_SYMBOL(cuMemGetAllocationGranularity, 10020),
      FAKE_CUDA_SYMBOL(cuMemCreate, 10020),
      FAKE_CUDA_SYMBOL(cuMemRelease, 10020),
      FAKE_CUDA_SYMBOL(cuMemExportToShareableHandle, 10020),
      FAKE_CUDA_SYMBOL(cuMemImportFromShareableHandle, 10020),
      FAKE_CUDA_SYMBOL(cuMemAddressReserve, 10020),
      FAKE_CUDA_SYMBOL(cuMemAddressFree, 10020),
      FAKE_CUDA_SYMBOL(cuMemMap, 10020),
      FAKE_CUDA_SYMBOL(cuMemUnmap, 10020),
      FAKE_CUDA_SYMBOL(cuMemSetAccess, 10020),
      FAKE_CUDA_SYMBOL(cuLibraryLoadData, 12000),
      FAKE_CUDA_SYMBOL(cuLibraryUnload, 12000),
      FAKE_CUDA_SYMBOL(cuLibraryGetKernel, 12000),
      FAKE_CUDA_SYMBOL(cuKernelGetFunction, 12000),
      FAKE_CUDA_SYMBOL(cuKernelSetAttribute, 12000),
      FAKE_CUDA_SYMBOL(cuTensorMapEncodeTiled, 12000),
      FAKE_CUDA_SYMBOL(cuLaunchKernelEx, 11060),
      FAKE_CUDA_SYMBOL(cuMemHostAlloc, 2020),
      FAKE_CUDA_SYMBOL(cuMemFreeHost, 2000),
      FAKE_CUDA_SYMBOL_V2(cuMemHostGetDevicePointer, 3020),
      FAKE_CUDA_SYMBOL(cuEventCreate, 2000),
      FAKE_CUDA_SYMBOL_V2(cuEventDestroy, 4000),
      FAKE_CUDA_SYMBOL(cuEventRecord, 2000),
      FAKE_CUDA_SYMBOL(cuEventQuery, 2000),
      FAKE_CUDA_SYMBOL(cuStreamWaitEvent, 3020),
      FAKE_CUDA_SYMBOL(cuMulticastGetGranularity, 12010),
      FAKE_CUDA_SYMBOL(cuMulticastCreate, 12010),
      FAKE_CUDA_SYMBOL(cuMulticastAddDevice, 12010),
      FAKE_CUDA_SYMBOL(cuMulticastBindMem, 12010),
      FAKE_CUDA_SYMBOL(cuMulticastUnbind, 12010)};
  const auto found = symbols.find(symbol);
  int version = 0;
  cuDriverGetVersion(&version);
  const bool known = found != symbols.end() && found->second.since <= version;
  *function = known ? found->second.function : nullptr;
  if (query_result != nullptr) *query_result = known ? 0 : 1;
  return known ? kSuccess : 500;
}

}  // extern "C"

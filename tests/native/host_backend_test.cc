// Host memory: two views of the same pages, errors before anything is half built, and nothing left
// in a child or after a release.
#include "memory/host_backend.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "check.h"

namespace jax_symm {
namespace {

constexpr uint64_t kBytes = 1 << 20;

char* Data(const Mapping& mapping) { return reinterpret_cast<char*>(mapping.address().value); }

int OpenDescriptors() {
  int count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

int MappedRanges() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("jax_symm") != line.npos;
  return count;
}

void TestPeersSeeTheSamePages(MemoryBackend& backend) {
  auto mine = ValueOrDie(backend.Create(0, kBytes, HandleType::kPosixFd));
  const UniqueFd fd = ValueOrDie(mine->ExportFd());
  CHECK((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  auto peer = ValueOrDie(backend.ImportFd(1, fd.get(), kBytes));
  const int devices[] = {0, 1};
  auto a = ValueOrDie(backend.Map(mine, devices));
  auto b = ValueOrDie(backend.Map(peer, devices));
  CHECK(a->address().value != b->address().value);
  Data(*a)[12345] = 42;
  CHECK(Data(*b)[12345] == 42);
  mine.reset();
  peer.reset();
  Data(*b)[0] = 7;
  CHECK(Data(*a)[0] == 7);
}

void TestZero(MemoryBackend& backend) {
  auto mapping =
      ValueOrDie(backend.Map(ValueOrDie(backend.Create(0, kBytes, HandleType::kPosixFd)), {}));
  std::memset(Data(*mapping), 1, kBytes);
  CHECK_OK(backend.Zero(0, *mapping, 100, 3 * 4096));
  for (uint64_t i = 0; i < 5 * 4096; ++i) {
    CHECK(Data(*mapping)[i] == (i < 100 || i >= 100 + 3 * 4096), "byte ", i);
  }
  CHECK_OK(backend.Zero(0, *mapping, 8192, 17));
  CHECK_OK(backend.Zero(0, *mapping, kBytes, 0));
  CheckError(backend.Zero(0, *mapping, kBytes - 1, 2), StatusCode::kInvalidArgument, "outside");
  CheckError(backend.Zero(0, *mapping, ~uint64_t{0}, 2), StatusCode::kInvalidArgument, "overflow");
}

void TestRefusals(MemoryBackend& backend) {
  CheckError(backend.Create(0, 0, HandleType::kPosixFd).status(), StatusCode::kInvalidArgument,
             "got 0 bytes");
  CheckError(backend.Create(0, 4097, HandleType::kPosixFd).status(), StatusCode::kInvalidArgument,
             "4097");
  CheckError(backend.Create(0, 4096, HandleType::kFabric).status(), StatusCode::kUnimplemented,
             "fabric");
  CheckError(backend.ImportFd(0, -1, 4096).status(), StatusCode::kInvalidArgument,
             "not an open descriptor");
  const UniqueFd unsealed(memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(ftruncate(unsealed.get(), 4096) == 0);
  CheckError(backend.ImportFd(0, unsealed.get(), 4096).status(), StatusCode::kInvalidArgument,
             "sealed");
  auto allocation = ValueOrDie(backend.Create(0, 8192, HandleType::kPosixFd));
  const UniqueFd fd = ValueOrDie(allocation->ExportFd());
  CheckError(backend.ImportFd(0, fd.get(), 4096).status(), StatusCode::kInvalidArgument,
             "has 8192 bytes, expected 4096");
  CHECK(ftruncate(fd.get(), 0) != 0, "a peer can shrink the memory under us");
  CheckError(allocation->ExportFabric().status(), StatusCode::kUnimplemented, "fabric");
}

void TestForkedChildFreesNothing(MemoryBackend& backend) {
  auto mapping =
      ValueOrDie(backend.Map(ValueOrDie(backend.Create(0, kBytes, HandleType::kPosixFd)), {}));
  Data(*mapping)[5] = 5;
  const pid_t child = fork();
  if (child == 0) {
    mapping.reset();
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(Data(*mapping)[5] == 5);
}

void Main() {
  auto backend = MakeHostBackend();
  const int descriptors = OpenDescriptors();
  for (int round = 0; round < 20; ++round) {
    TestPeersSeeTheSamePages(*backend);
    TestZero(*backend);
    TestRefusals(*backend);
  }
  TestForkedChildFreesNothing(*backend);
  CHECK(OpenDescriptors() == descriptors, OpenDescriptors(), " against ", descriptors);
  CHECK(MappedRanges() == 0, MappedRanges(), " mappings are left");
}

}  // namespace
}  // namespace jax_symm

int main() { jax_symm::Main(); }

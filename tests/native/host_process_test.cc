// The push protocol between real processes, and the death of one of them inside a call.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workspace_fixture.h"

namespace jax_symm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kWorldSize = 4;
constexpr int kNumProcesses = 2;

struct Member {
  std::shared_ptr<HostWorkspace> workspace;
  std::vector<int> ranks;
};

/// The descriptors were made before the fork, as a parent would pass them.
Member Join(int process, const std::vector<UniqueFd>& fds, milliseconds timeout) {
  auto backend = MakeHostBackend();
  const uint64_t nbytes = ValueOrDie(HostWorkspaceBytes(kWorldSize, 1 << 16, true));
  std::vector<std::shared_ptr<Mapping>> memory;
  for (const UniqueFd& fd : fds) {
    memory.push_back(
        ValueOrDie(backend->Map(ValueOrDie(backend->ImportFd(0, fd.get(), nbytes)), {})));
  }
  HostWorkspaceOptions options = {
      .name = "processes",
      .axis = "tp",
      .timeout = timeout,
      .world_size = kWorldSize,
      .capacity_bytes = 1 << 16,
      .all_reduce = true,
      .rank_labels = {{"rank 0", "rank 1", "rank 2", "rank 3"}},
      .locals = {},
  };
  Member member;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    if (rank * kNumProcesses / kWorldSize != process) continue;
    member.ranks.push_back(rank);
    options.locals.push_back({rank, 0, rank, memory});
  }
  member.workspace = ValueOrDie(HostWorkspace::Open(std::move(options)));
  return member;
}

Status MakeCall(const Member& member, const TestCall& call) {
  const Scheduler inline_scheduler = [](const std::function<void()>& task) { task(); };
  std::deque<DeviceCall> made;
  for (int rank : member.ranks) {
    made.emplace_back(call, rank);
    const Status refused =
        member.workspace->Submit(rank, kWorldSize, rank, made.back().Make(), inline_scheduler);
    if (!refused.ok()) made.back().answer.completion()(refused);
  }
  Status first;
  for (DeviceCall& device : made) {
    const Status status = device.answer.Wait();
    if (!status.ok() && first.ok()) first = status;
    if (status.ok()) device.test.CheckResult(device.result, device.rank, kWorldSize);
  }
  return first;
}

TestCall CallNumber(int run) {
  const auto op = run % 2 == 0 ? CollectiveOp::kAllReduce : CollectiveOp::kReduceScatter;
  return TestCall::Make(run, 0, op, 2, 1 + run % 17, 16, kWorldSize);
}

std::vector<UniqueFd> Memory() {
  auto backend = MakeHostBackend();
  const uint64_t nbytes = ValueOrDie(HostWorkspaceBytes(kWorldSize, 1 << 16, true));
  std::vector<UniqueFd> fds;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    fds.push_back(
        ValueOrDie(ValueOrDie(backend->Create(rank, nbytes, HandleType::kPosixFd))->ExportFd()));
  }
  return fds;
}

/// Runs `body(process)` in kNumProcesses children; their exit statuses.
std::vector<int> InProcesses(const std::function<void(int)>& body) {
  std::vector<pid_t> children;
  for (int process = 0; process < kNumProcesses; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      body(process);
      _exit(0);
    }
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    statuses.push_back(status);
  }
  return statuses;
}

void TestSums() {
  const std::vector<UniqueFd> fds = Memory();
  const auto statuses = InProcesses([&](int process) {
    const Member member = Join(process, fds, seconds(60));
    for (int run = 0; run < 300; ++run) CHECK_OK(MakeCall(member, CallNumber(run)));
    CHECK_OK(member.workspace->Close(seconds(10)));
  });
  for (int status : statuses) CHECK(status == 0, status);
}

void TestDeath() {
  const std::vector<UniqueFd> fds = Memory();
  const auto statuses = InProcesses([&](int process) {
    const Member member = Join(process, fds, milliseconds(500));
    for (int run = 0; run < 10; ++run) CHECK_OK(MakeCall(member, CallNumber(run)));
    if (process == 1) kill(getpid(), SIGKILL);
    const Status status = MakeCall(member, CallNumber(10));
    CheckError(status, StatusCode::kDeadlineExceeded, "rank 2, rank 3");
    CHECK(member.workspace->Check().message() == status.message());
    CHECK_OK(member.workspace->Close(seconds(10)));
  });
  CHECK(statuses[0] == 0, statuses[0]);
  CHECK(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL, statuses[1]);
}

void Main() {
  TestSums();
  TestDeath();
}

}  // namespace
}  // namespace jax_symm

int main() { jax_symm::Main(); }

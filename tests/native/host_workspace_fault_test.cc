// What goes wrong ends in one error on every rank, and nothing is left pending.
#include "runtime/fault_record.h"
#include "workspace_fixture.h"

namespace jax_symm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kAllReduce = CollectiveOp::kAllReduce;

TestCall SmallCall(int64_t run, int64_t site, int64_t rows = 8) {
  return TestCall::Make(run, site, kAllReduce, 1, rows, 4, 4);
}

/// Every device of `devices` makes `call`; all must get the same error.
Status SameError(Cluster& cluster, Pool& pool, const std::vector<std::pair<int, TestCall>>& calls) {
  std::deque<DeviceCall> made;
  std::vector<Status> statuses;
  for (const auto& [device, call] : calls) {
    made.emplace_back(call, device);
    const Status refused = cluster.Submit(device, made.back().Make(), pool);
    if (!refused.ok()) made.back().answer.completion()(refused);
  }
  for (DeviceCall& call : made) statuses.push_back(call.answer.Wait());
  for (const Status& status : statuses) {
    CHECK(status.message() == statuses[0].message(), status.message(), " against ",
          statuses[0].message());
  }
  return statuses[0];
}

void CheckRefuses(Cluster& cluster, Pool& pool, const Status& fault) {
  for (const auto& process : cluster.processes()) {
    // The news reaches a process without a pending call by its progress thread.
    for (int tries = 0; process->Check().ok() && tries < 5000; ++tries) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    CHECK(process->Check().message() == fault.message(), process->Check().message());
  }
  for (int d = 0; d < cluster.setup().world_size; ++d) {
    DeviceCall later(SmallCall(999, 9), d);
    const Status status = cluster.Submit(d, later.Make(), pool);
    CHECK(status.message() == fault.message(), status.message());
  }
  for (const auto& process : cluster.processes()) CHECK_OK(process->Close(seconds(10)));
}

void MissingRank(int num_processes, int missing) {
  Cluster cluster({.num_processes = num_processes, .timeout = milliseconds(300)});
  Pool pool(2);
  std::vector<std::pair<int, TestCall>> calls;
  for (int d = 0; d < 4; ++d) {
    if (d != missing) calls.emplace_back(d, SmallCall(1, 0));
  }
  const Status status = SameError(cluster, pool, calls);
  CheckError(status, StatusCode::kDeadlineExceeded, StrCat("rank ", missing, " (device"));
  CheckRefuses(cluster, pool, status);
}

void OtherCall(int num_processes) {
  Cluster cluster({.num_processes = num_processes, .timeout = milliseconds(300)});
  Pool pool(2);
  const Status status = SameError(
      cluster, pool,
      {{0, SmallCall(1, 0)}, {1, SmallCall(1, 0)}, {2, SmallCall(1, 0)}, {3, SmallCall(2, 5)}});
  CheckError(status, StatusCode::kDeadlineExceeded, "rank 3");
  for (const TestCall& call : {SmallCall(1, 0), SmallCall(2, 5)}) {
    CheckError(status, StatusCode::kDeadlineExceeded, Describe(call.key, call.problem));
  }
  CheckRefuses(cluster, pool, status);
}

/// As when one process has compiled its programs again.
void OtherLaunch() {
  Cluster cluster({.num_processes = 2, .timeout = milliseconds(300)});
  Pool pool(2);
  const Status status = SameError(
      cluster, pool,
      {{0, SmallCall(5, 0)}, {1, SmallCall(5, 0)}, {2, SmallCall(1, 0)}, {3, SmallCall(1, 0)}});
  CheckError(status, StatusCode::kDeadlineExceeded, "launch 5, call site 0#");
  CheckError(status, StatusCode::kDeadlineExceeded, "launch 1, call site 0#");
  CheckError(status, StatusCode::kDeadlineExceeded, "as after jax.clear_caches()");
  CheckRefuses(cluster, pool, status);
}

/// The same call site and launch with other shapes: found at once, not by a time-out.
void OtherShape() {
  Cluster cluster({.num_processes = 2});
  Pool pool(2);
  const Status status = SameError(
      cluster, pool,
      {{0, SmallCall(1, 0)}, {1, SmallCall(1, 0)}, {2, SmallCall(1, 0)}, {3, SmallCall(1, 0, 12)}});
  CheckError(status, StatusCode::kInvalidArgument, "m=12");
  CheckError(status, StatusCode::kInvalidArgument, "m=8");
  CheckRefuses(cluster, pool, status);
}

void PeerLost(int num_processes) {
  Cluster cluster({.num_processes = num_processes});
  Pool pool(2);
  DeviceCall first(SmallCall(1, 0), 0);
  DeviceCall second(SmallCall(1, 0), 1);
  CHECK_OK(cluster.Submit(0, first.Make(), pool));
  CHECK_OK(cluster.Submit(1, second.Make(), pool));
  cluster.Of(0).Abort(0, 3, "its connection ended");
  const Status lost = cluster.Of(0).Check();
  CheckError(lost, StatusCode::kAborted, "its connection ended (rank 3 of group 0 is lost)");
  CHECK(first.answer.Wait().message() == lost.message());
  CHECK(second.answer.Wait().code() == StatusCode::kAborted);
  CheckRefuses(cluster, pool, lost);
}

void WrongDevice(int num_processes) {
  for (const bool foreign : {false, true}) {
    Cluster cluster({.num_processes = num_processes});
    Pool pool(2);
    DeviceCall waiting(SmallCall(1, 0), 0);
    CHECK_OK(cluster.Submit(0, waiting.Make(), pool));
    DeviceCall wrong(SmallCall(1, 0), 1);
    const Status status =
        cluster.Of(1).Submit(foreign ? 17 : 1, 4, foreign ? 1 : 2, wrong.Make(), pool.scheduler());
    CheckError(status, StatusCode::kFailedPrecondition,
               foreign ? "does not have this device" : "another device order");
    CHECK(waiting.answer.Wait().message() == status.message());
    CheckRefuses(cluster, pool, status);
  }
}

/// Refusals that every rank makes alike leave the workspace as it was.
void Refusals() {
  Cluster cluster({.capacity_bytes = 128, .all_reduce = false});
  Pool pool(2);
  DeviceCall call(TestCall::Make(1, 0, CollectiveOp::kReduceScatter, 1, 9, 4, 4), 0);
  CheckError(cluster.Submit(0, call.Make(), pool), StatusCode::kFailedPrecondition,
             "needs 192 bytes, its capacity is 128");
  DeviceCall reduce(SmallCall(1, 0), 0);
  CheckError(cluster.Submit(0, reduce.Make(), pool), StatusCode::kFailedPrecondition,
             "without all_reduce");
  DeviceCall wide(TestCall::Make(1, 0, CollectiveOp::kReduceScatter, 1, 8, 4, 4), 0);
  CheckError(cluster.Of(0).Submit(0, 8, 0, wide.Make(), pool.scheduler()),
             StatusCode::kFailedPrecondition, "has 8 devices");
  CHECK_OK(cluster.Of(0).Check());
}

void Names() {
  Cluster cluster({.world_size = 2});
  using Registry = WorkspaceRegistry<HostWorkspace>;
  HostWorkspaceOptions options = cluster.Options("name");
  options.locals = {{0, 0, 0, {}}, {1, 0, 1, {}}};
  CheckError(Registry::Get().Find("name").status(), StatusCode::kFailedPrecondition, "not open");
  auto first = ValueOrDie(HostWorkspace::Open(options));
  CheckError(HostWorkspace::Open(options).status(), StatusCode::kFailedPrecondition,
             "already open");
  CHECK(ValueOrDie(Registry::Get().Find("name")) == first);
  CHECK_OK(first->Close(seconds(1)));
  CheckError(Registry::Get().Find("name").status(), StatusCode::kFailedPrecondition, "is closed");
  auto second = ValueOrDie(HostWorkspace::Open(options));
  CHECK(second->generation() > first->generation());
  CHECK_OK(first->Close(seconds(1)));
  CHECK(ValueOrDie(Registry::Get().Find("name")) == second);
  HostWorkspace::Abandon(second);
  options.locals.pop_back();
  CheckError(HostWorkspace::Open(options).status(), StatusCode::kInvalidArgument,
             "0 mappings, expected 2");
  options.locals = {{0, 0, 0, {}}, {0, 0, 1, {}}};
  CheckError(HostWorkspace::Open(options).status(), StatusCode::kInvalidArgument, "listed twice");
}

/// Closing fails what can no longer be completed, and waits for what can.
void CloseWhilePending(int num_processes) {
  Cluster cluster({.num_processes = num_processes});
  Pool pool(2);
  DeviceCall pending(SmallCall(1, 0), 0);
  CHECK_OK(cluster.Submit(0, pending.Make(), pool));
  CheckError(cluster.Of(0).Close(milliseconds(50)), StatusCode::kDeadlineExceeded, "in flight");
  CHECK(!pending.answer.Wait().ok());
  DeviceCall late(SmallCall(2, 0), 0);
  CHECK(!cluster.Submit(0, late.Make(), pool).ok());
}

void CloseUnderLoad() {
  for (int round = 0; round < 10; ++round) {
    Cluster cluster({});
    Pool pool(2);
    std::vector<std::thread> devices;
    for (int d = 0; d < 4; ++d) {
      devices.emplace_back([&, d] {
        for (int run = 0;; ++run) {
          DeviceCall call(SmallCall(run, 0), d);
          if (!cluster.Submit(d, call.Make(), pool).ok()) return;
          const Status status = call.answer.Wait();
          if (!status.ok()) return;
          call.test.CheckResult(call.result, d, 4);
        }
      });
    }
    std::this_thread::sleep_for(milliseconds(2 * round));
    // One rank may have entered a call that the others find closed, so both answers are right.
    const Status status = cluster.Of(0).Close(milliseconds(100));
    CHECK(status.ok() || status.code() == StatusCode::kDeadlineExceeded, status.message());
    for (auto& device : devices) device.join();
  }
}

/// Whatever a call is doing when the fault comes, it is completed.
void AbortUnderLoad(int num_processes) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 40; ++round) {
    Cluster cluster({.num_processes = num_processes});
    Pool pool(2);
    std::vector<std::thread> devices;
    for (int d = 0; d < 4; ++d) {
      devices.emplace_back([&, d] {
        for (int run = 0;; ++run) {
          DeviceCall call(SmallCall(run, 0), d);
          if (!cluster.Submit(d, call.Make(), pool).ok()) return;
          if (!call.answer.Wait().ok()) return;
          call.test.CheckResult(call.result, d, 4);
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    cluster.Of(3).Abort(0, 1, "its connection ended");
    for (auto& device : devices) device.join();
    CheckRefuses(cluster, pool, cluster.Of(3).Check());
  }
}

void FirstFaultStays() {
  alignas(FaultRecord) char memory[sizeof(FaultRecord)] = {};
  auto& record = *reinterpret_cast<FaultRecord*>(memory);
  record.Write(MakeStatus(StatusCode::kAborted, "first"));
  record.Write(MakeStatus(StatusCode::kInternal, "second"));
  CheckError(record.Read(), StatusCode::kAborted, "first");
  alignas(FaultRecord) char other[sizeof(FaultRecord)] = {};
  auto& unwritten = *reinterpret_cast<FaultRecord*>(other);
  CheckError(unwritten.Read(), StatusCode::kAborted, "while it recorded a fault");
  unwritten.Write(MakeStatus(StatusCode::kInternal, std::string(10000, 'x')));
  CheckError(unwritten.Read(), StatusCode::kInternal, std::string(3000, 'x'));
}

void Main() {
  FirstFaultStays();
  for (int processes : {1, 2, 4}) {
    AbortUnderLoad(processes);
    for (int missing : {0, 3}) MissingRank(processes, missing);
    OtherCall(processes);
    PeerLost(processes);
    WrongDevice(processes);
    CloseWhilePending(processes);
  }
  OtherLaunch();
  OtherShape();
  Refusals();
  Names();
  CloseUnderLoad();
}

}  // namespace
}  // namespace jax_symm

int main() { jax_symm::Main(); }

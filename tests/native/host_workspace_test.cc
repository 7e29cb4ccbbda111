// Stress: every device is a thread that makes the same calls, independent ones in an order of its
// own, in one process and as members of several.
#include <algorithm>

#include "workspace_fixture.h"

namespace jax_symm {
namespace {

/// The calls of one launch: some chained, some independent of each other.
std::vector<TestCall> LaunchCalls(int64_t run, int world_size) {
  std::mt19937_64 random(static_cast<uint64_t>(run));
  std::vector<TestCall> calls;
  for (int64_t site = 0; site < 4; ++site) {
    const auto op = random() % 2 == 0 ? CollectiveOp::kReduceScatter : CollectiveOp::kAllReduce;
    const auto batch = static_cast<int64_t>(random() % 3);
    const auto rows = static_cast<int64_t>(random() % 20);
    const auto n = static_cast<int64_t>(1 + random() % 40);
    calls.push_back(TestCall::Make(run, site, op, batch, rows, n, world_size));
  }
  return calls;
}

void RunDevice(Cluster& cluster, Pool& pool, int device, int num_runs) {
  const int world_size = cluster.setup().world_size;
  std::mt19937_64 random(static_cast<uint64_t>(device) + 1000);
  for (int run = 0; run < num_runs; ++run) {
    std::vector<TestCall> calls = LaunchCalls(run, world_size);
    std::ranges::shuffle(calls, random);
    std::deque<DeviceCall> made;
    for (const TestCall& call : calls) {
      made.emplace_back(call, device % world_size);
      CHECK_OK(cluster.Submit(device, made.back().Make(), pool));
      if (random() % 4 == 0) std::this_thread::yield();
    }
    for (DeviceCall& call : made) {
      CHECK_OK(call.answer.Wait());
      call.test.CheckResult(call.result, call.rank, world_size);
    }
  }
}

void Stress(const Setup& setup, int num_runs) {
  Cluster cluster(setup);
  {
    Pool pool(2);
    std::vector<std::thread> devices;
    for (int d = 0; d < setup.num_groups * setup.world_size; ++d) {
      devices.emplace_back([&, d] { RunDevice(cluster, pool, d, num_runs); });
    }
    for (auto& device : devices) device.join();
  }
  for (const auto& process : cluster.processes()) {
    for (const CallCount& count : process->Calls()) CHECK(count.count == 4 * num_runs, count.count);
    CHECK_OK(process->Check());
    CHECK_OK(process->Close(std::chrono::seconds(10)));
    CHECK_OK(process->Close(std::chrono::seconds(0)));
  }
}

/// More than one piece, so that several threads share the sum.
void LargeCall(int num_processes) {
  const Setup setup{.world_size = 4, .num_processes = num_processes, .capacity_bytes = 4 << 20};
  Cluster cluster(setup);
  Pool pool(2);
  for (const auto op : {CollectiveOp::kReduceScatter, CollectiveOp::kAllReduce}) {
    std::deque<DeviceCall> made;
    for (int d = 0; d < 4; ++d) {
      made.emplace_back(TestCall::Make(static_cast<int64_t>(op), 0, op, 2, 301, 401, 4), d);
      CHECK_OK(cluster.Submit(d, made.back().Make(), pool));
    }
    for (DeviceCall& call : made) {
      CHECK_OK(call.answer.Wait());
      call.test.CheckResult(call.result, call.rank, 4);
    }
  }
}

/// Workers that certainly take part in the sum: the last to arrive waits until they have begun.
void HelpersShareTheSum() {
  Cluster cluster({.world_size = 2, .capacity_bytes = 4 << 20});
  std::vector<std::thread> helpers;
  const Scheduler schedule = [&](std::function<void()> task) {
    auto begun = std::make_shared<std::atomic<bool>>(false);
    helpers.emplace_back([begun, task = std::move(task)] {
      begun->store(true);
      begun->notify_one();
      task();
    });
    begun->wait(false);
  };
  const TestCall test = TestCall::Make(1, 0, CollectiveOp::kReduceScatter, 1, 500, 1000, 2);
  DeviceCall first(test, 0);
  DeviceCall second(test, 1);
  CHECK_OK(cluster.Of(0).Submit(0, 2, 0, first.Make(), schedule));
  CHECK_OK(cluster.Of(1).Submit(1, 2, 1, second.Make(), schedule));
  for (DeviceCall* call : {&first, &second}) {
    CHECK_OK(call->answer.Wait());
    call->test.CheckResult(call->result, call->rank, 2);
  }
  for (auto& helper : helpers) helper.join();
}

/// Launches follow each other without a wait: a rank may be a call ahead of its peers.
void ManyInFlight(int num_processes) {
  const Setup setup{.world_size = 4, .num_processes = num_processes};
  Cluster cluster(setup);
  Pool pool(2);
  std::deque<DeviceCall> made;
  for (int run = 0; run < 200; ++run) {
    for (int d = 0; d < 4; ++d) {
      const auto op = run % 2 == 0 ? CollectiveOp::kAllReduce : CollectiveOp::kReduceScatter;
      made.emplace_back(TestCall::Make(run, 0, op, 1, 1 + run % 13, 8, 4), d);
      CHECK_OK(cluster.Submit(d, made.back().Make(), pool));
    }
  }
  for (DeviceCall& call : made) {
    CHECK_OK(call.answer.Wait());
    call.test.CheckResult(call.result, call.rank, 4);
  }
}

void Main() {
  Stress({.world_size = 1}, 20);
  Stress({.world_size = 8}, 150);
  Stress({.world_size = 3, .num_groups = 2}, 100);
  Stress({.world_size = 2, .num_processes = 2}, 150);
  Stress({.world_size = 8, .num_processes = 2}, 80);
  Stress({.world_size = 6, .num_processes = 3, .num_groups = 2}, 40);
  Stress({.world_size = 16, .num_processes = 4}, 15);
  HelpersShareTheSum();
  for (int processes : {1, 2, 4}) {
    LargeCall(processes);
    ManyInFlight(processes);
  }
}

}  // namespace
}  // namespace jax_symm

int main() { jax_symm::Main(); }

// Host workspaces without XLA: threads stand for devices, and workspaces that share memory for the
// processes of a group.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "memory/host_backend.h"
#include "runtime/host_workspace.h"

namespace jax_symm {

/// Stands for XLA's thread pool.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  Scheduler scheduler() {
    return [this](std::function<void()> task) { Schedule(std::move(task)); };
  }

 private:
  void Run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

/// The answer to one call.
class Answer {
 public:
  Completion completion() {
    return [this](const Status& status) {
      std::lock_guard<std::mutex> lock(mutex_);
      CHECK(!given_, "completed twice");
      status_ = status;
      given_ = true;
      changed_.notify_all();
    };
  }
  Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return given_; }),
          "a call was never completed");
    return status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Status status_;
  bool given_ = false;
};

struct Setup {
  int world_size = 4;
  int num_processes = 1;
  int num_groups = 1;
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  uint64_t capacity_bytes = 1 << 16;
  bool all_reduce = true;
};

/// One workspace object per simulated process; device ordinal = group * world_size + rank.
class Cluster {
 public:
  explicit Cluster(const Setup& setup) : setup_(setup) {
    static std::atomic<int> serial{0};
    const int id = serial++;
    const uint64_t nbytes =
        ValueOrDie(HostWorkspaceBytes(setup.world_size, setup.capacity_bytes, setup.all_reduce));
    auto backend = MakeHostBackend();
    const int devices = setup.num_groups * setup.world_size;
    std::vector<std::shared_ptr<Mapping>> memory;
    for (int d = 0; d < devices; ++d) {
      memory.push_back(ValueOrDie(
          backend->Map(ValueOrDie(backend->Create(d, nbytes, HandleType::kPosixFd)), {})));
    }
    for (int p = 0; p < setup.num_processes; ++p) {
      HostWorkspaceOptions options = Options(StrCat("cluster-", id, "-", p));
      for (int d = 0; d < devices; ++d) {
        if (ProcessOf(d) != p) continue;
        const int group = d / setup.world_size;
        const auto begin = memory.begin() + group * setup.world_size;
        options.locals.push_back(
            {d, group, d % setup.world_size, {begin, begin + setup.world_size}});
      }
      processes_.push_back(ValueOrDie(HostWorkspace::Open(std::move(options))));
    }
  }

  HostWorkspaceOptions Options(std::string name) const {
    HostWorkspaceOptions options;
    options.name = std::move(name);
    options.axis = "tp";
    options.nonce = 77;
    options.timeout = setup_.timeout;
    options.world_size = setup_.world_size;
    options.capacity_bytes = setup_.capacity_bytes;
    options.all_reduce = setup_.all_reduce;
    for (int g = 0; g < setup_.num_groups; ++g) {
      options.rank_labels.emplace_back();
      for (int r = 0; r < setup_.world_size; ++r) {
        options.rank_labels.back().push_back(StrCat("rank ", r, " (device ", r, ")"));
      }
    }
    return options;
  }

  /// Neighbouring ranks are in one process; a group may be split among several.
  int ProcessOf(int device) const {
    return device % setup_.world_size * setup_.num_processes / setup_.world_size;
  }
  HostWorkspace& Of(int device) { return *processes_[ProcessOf(device)]; }
  const std::vector<std::shared_ptr<HostWorkspace>>& processes() const { return processes_; }
  const Setup& setup() const { return setup_; }

  Status Submit(int device, HostCall call, Pool& pool) {
    return Of(device).Submit(device, setup_.world_size, device % setup_.world_size, std::move(call),
                             pool.scheduler());
  }

 private:
  const Setup setup_;
  std::vector<std::shared_ptr<HostWorkspace>> processes_;
};

/// f32 calls whose data are small integers: every sum is exact, rank r contributes 2^r times a
/// pattern of the call.
struct TestCall {
  CallKey key;
  HostProblem problem;

  static TestCall Make(int64_t run, int64_t site, CollectiveOp op, int64_t batch, int64_t rows,
                       int64_t n, int world_size) {
    return {{run, site, 0},
            {.op = op,
             .in = ElementType::kF32,
             .out = ElementType::kF32,
             .batch = batch,
             .rows = rows,
             .shard_rows = (rows + world_size - 1) / world_size,
             .n = n,
             .k = 1}};
  }

  float Pattern(int64_t i) const {
    return static_cast<float>((key.run_id * 5 + key.call_site * 3 + i) % 11 - 5);
  }
  std::vector<float> Partial(int rank) const {
    std::vector<float> data(problem.batch * problem.entry_elements());
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = Pattern(static_cast<int64_t>(i)) * static_cast<float>(1 << rank);
    }
    return data;
  }
  std::vector<float> PoisonedResult() const {
    const int64_t elements = problem.op == CollectiveOp::kReduceScatter
                                 ? problem.batch * problem.shard_elements()
                                 : problem.batch * problem.entry_elements();
    return std::vector<float>(elements, __builtin_nanf(""));
  }
  void CheckResult(const std::vector<float>& result, int rank, int world_size) const {
    const auto scale = static_cast<float>((1 << world_size) - 1);
    for (size_t i = 0; i < result.size(); ++i) {
      auto at = static_cast<int64_t>(i);
      float want = 0;
      if (problem.op == CollectiveOp::kAllReduce) {
        want = Pattern(at) * scale;
      } else {
        const int64_t in_shard = at % problem.shard_elements();
        const int64_t entry = at / problem.shard_elements();
        if (in_shard < problem.owned_elements(rank)) {
          want = scale * Pattern(entry * problem.entry_elements() +
                                 rank * problem.shard_elements() + in_shard);
        }
      }
      CHECK(result[i] == want, Describe(key, problem), " rank ", rank, " element ", i, ": got ",
            result[i], ", expected ", want);
    }
  }
};

/// A call as one device makes it.
struct DeviceCall {
  DeviceCall(const TestCall& test_call, int device_rank)
      : test(test_call),
        rank(device_rank),
        partial(test.Partial(rank)),
        result(test.PoisonedResult()) {}

  HostCall Make() {
    return {test.key.call_site, test.key,      test.problem,
            partial.data(),     result.data(), answer.completion()};
  }

  TestCall test;
  int rank;
  std::vector<float> partial;
  std::vector<float> result;
  Answer answer;
};

}  // namespace jax_symm

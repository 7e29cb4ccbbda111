#include "runtime/completion_thread.h"

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/float_mode.h"
#include "runtime/thread.h"

namespace jax_symm {

struct CompletionThread::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::function<void()>> completions;
  bool stopped = false;

  void Run() {
    const ScopedFloatMode mode(FloatMode::kFlushDenormals);  // as on XLA's own threads
    std::vector<std::function<void()>> batch;
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return stopped || !completions.empty(); });
        if (completions.empty()) return;
        batch.swap(completions);
      }
      for (const auto& completion : batch) completion();
      batch.clear();
    }
  }
};

StatusOr<std::unique_ptr<CompletionThread>> CompletionThread::Start(const std::string& name) {
  auto queue = std::make_shared<Queue>();
  JAX_SYMM_RETURN_IF_ERROR(StartThread(name, [queue] { queue->Run(); }));
  return std::unique_ptr<CompletionThread>(new CompletionThread(std::move(queue)));
}

CompletionThread::CompletionThread(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

CompletionThread::~CompletionThread() {
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->stopped = true;
  }
  queue_->changed.notify_one();
}

void CompletionThread::Post(std::function<void()> completion) {
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->completions.push_back(std::move(completion));
  }
  queue_->changed.notify_one();
}

}  // namespace jax_symm

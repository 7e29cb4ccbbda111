#include "runtime/thread.h"

#include <pthread.h>
#include <signal.h>

#include <cstring>
#include <memory>
#include <utility>

#include "base/scope_guard.h"

namespace jax_symm {
namespace {

constexpr size_t kStackBytes = size_t{8} << 20;  // what XLA's own workers have

struct ThreadStart {
  std::string name;
  std::function<void()> body;
};

void* Main(void* arg) {
  const std::unique_ptr<ThreadStart> start(static_cast<ThreadStart*>(arg));
  pthread_setname_np(pthread_self(), start->name.c_str());
  start->body();
  return nullptr;
}

}  // namespace

Status StartThread(const std::string& name, std::function<void()> body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ScopeGuard destroy([&] { pthread_attr_destroy(&attributes); });
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);

  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  auto start = std::make_unique<ThreadStart>(ThreadStart{name.substr(0, 15), std::move(body)});
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, Main, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return ResourceExhausted("starting thread ", name, " failed: ", std::strerror(error),
                             "; raise the limit on processes (ulimit -u)");
  }
  start.release();
  return OkStatus();
}

}  // namespace jax_symm

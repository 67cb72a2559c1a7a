#include "transport/uv/at_exit.h"

#include <capnp/capability.h>
#include <capnp/common.h>
#include <kj/async.h>
#include <kj/exception.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>

#include "transport/uv/uv_loop.h"

namespace dsgd::transport::uv {
namespace {

// A loop may be in a function of the host's that does not return.
constexpr auto kPatience = std::chrono::seconds(1);

// Never destroyed. A forked child has one of its own, since its parent's lock may be held for ever.
struct Loops {
  const pid_t process = getpid();
  std::mutex mutex;
  std::set<UvLoop*> loops;
};

std::atomic<Loops*> current{nullptr};
std::atomic<bool> exits{false};

Loops& of_this_process() {
  Loops* loops = current.load();
  if (loops && loops->process == getpid()) return *loops;
  auto* made = new Loops;
  if (current.compare_exchange_strong(loops, made)) return *made;
  delete made;
  return *loops;
}

void rest_all() {
  Loops* loops = current.load();
  if (!loops || loops->process != getpid()) return;
  exits = true;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  std::lock_guard lock(loops->mutex);
  for (UvLoop* loop : loops->loops) loop->begin_rest();
  for (UvLoop* loop : loops->loops) loop->await_rest(until);
}

// Static objects of a library are destroyed when it is finalized: after everything that the program registers
// in main(), and after its destructors, so these find sessions alive; and before the libraries that it links.
// KJ's static objects must be created here, too: created later, they would be destroyed first. (atexit() does
// not serve: ThreadSanitizer runs its functions after all libraries.)
const struct Registration {
  Registration() {
    (void)kj::runCatchingExceptions([] {
      kj::Promise<void> ready = kj::READY_NOW, never = kj::NEVER_DONE;
      auto later = kj::evalLater([] {}), last = kj::evalLast([] {});
#if CAPNP_VERSION >= 1000000
      auto pipeline = capnp::getDisabledPipeline();
#endif
    });
  }
  ~Registration() { rest_all(); }
} registration;

}  // namespace

bool process_exits() { return exits.load(); }

void rest_at_exit(UvLoop* loop) {
  Loops& loops = of_this_process();
  std::lock_guard lock(loops.mutex);
  loops.loops.insert(loop);
}

void forget_at_exit(UvLoop* loop) {
  Loops& loops = of_this_process();
  std::lock_guard lock(loops.mutex);
  loops.loops.erase(loop);
}

}  // namespace dsgd::transport::uv

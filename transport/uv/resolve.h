// Resolves host names. The system's resolver blocks until the name server answers, so it runs on a detached
// thread, whose answer is dropped if the caller has stopped waiting. libuv's resolver would keep its loop
// from closing until then.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/uv/address.h"
#include "transport/uv/uv_loop.h"

namespace dsgd::transport::uv {

using Addresses = Result<std::vector<SocketAddress>>;

// `done` comes from the loop. Dropping the returned handle cancels it.
class Resolution;
std::shared_ptr<Resolution> resolve(UvLoop& loop, const ParsedAddress& address,
                                    std::function<void(Addresses)> done);

// The time at which resolve_now() gives up. Any thread.
class ResolveLimit {
 public:
  void set(Time until);  // also for a call under way

 private:
  friend Addresses resolve_now(const ParsedAddress&, bool, const std::shared_ptr<ResolveLimit>&);
  std::mutex mutex_;
  std::condition_variable changed_;
  Time until_ = kNever;
};

// Blocks; kTimeout after `limit`. `passive`: for an address to listen on.
Addresses resolve_now(const ParsedAddress& address, bool passive, const std::shared_ptr<ResolveLimit>& limit);

}  // namespace dsgd::transport::uv

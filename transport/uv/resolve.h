// Resolves host names. The system's resolver blocks until the name server answers, so it runs on a detached
// thread, whose answer is dropped if the caller has stopped waiting. libuv's resolver would keep its loop
// from closing until then.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/poster.h"
#include "transport/uv/address.h"
#include "transport/uv/uv_loop.h"

namespace dsgd::transport::uv {

using Addresses = Result<std::vector<SocketAddress>>;

// Calls `done`: at once if the address needs no look-up, or with an error if no thread can be started; else
// on a new thread, with the answer of the system. `passive`: for an address to listen on.
void find_addresses(const ParsedAddress& address, bool passive, std::function<void(Addresses)> done);

// The look-ups of one loop; used on it. A look-up goes on when its caller stops waiting, and the next caller
// for the same address gets its answer, once. So a name server that takes longer than the deadline of a dial
// delays the connection and does not prevent it. If the answer is out of date, the dial fails, and the next
// one asks again. The resolver outlives the last task of the loop.
class Resolver {
 public:
  using Done = std::function<void(Addresses)>;
  explicit Resolver(UvLoop& loop) : poster_(std::make_shared<Poster>(loop)) {}
  ~Resolver() { end(); }
  // Calls `done` later, from the loop, unless the returned handle is dropped before.
  std::shared_ptr<Done> resolve(const ParsedAddress& address, Done done);
  void end() { poster_->close(); }  // answers that come later are dropped

 private:
  struct LookUp {
    std::vector<std::weak_ptr<Done>> waiters;
    std::optional<Addresses> answer;  // came when nobody waited
  };
  void answered(const std::string& key, const Addresses& answer);

  std::map<std::string, LookUp> look_ups_;
  const std::shared_ptr<Poster> poster_;  // threads that outlive the resolver deliver their answers to it
};

// The time at which a caller that blocks gives up. Any thread.
class ResolveLimit {
 public:
  void set(Time until);  // also for a call under way

 private:
  friend class LookUps;
  std::mutex mutex_;
  std::condition_variable changed_;
  Time until_ = kNever;
};

// Looks up several addresses at the same time, for a caller that blocks.
class LookUps {
 public:
  // `passive`: for addresses to listen on.
  LookUps(std::vector<ParsedAddress> addresses, bool passive, std::shared_ptr<ResolveLimit> limit);
  struct Found {
    size_t index;
    std::vector<SocketAddress> addresses;
  };
  // Blocks. Returns the next one that is resolved, in their order; but one whose name server is silent delays
  // the others by no more than kPatience. The first failure if there is none; kTimeout after `limit`.
  Result<Found> next();

 private:
  static constexpr Duration kPatience = std::chrono::seconds(1);
  struct LookUp {
    std::optional<Addresses> answer;
    bool used = false;
  };

  const std::vector<ParsedAddress> addresses_;
  const std::shared_ptr<ResolveLimit> limit_;
  const std::shared_ptr<std::vector<LookUp>> look_ups_;  // under limit_->mutex_
  const Time began_;
};

// Blocks; kTimeout after `limit`. `passive`: for an address to listen on.
Addresses resolve_now(const ParsedAddress& address, bool passive, const std::shared_ptr<ResolveLimit>& limit);

}  // namespace dsgd::transport::uv

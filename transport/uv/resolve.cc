#include "transport/uv/resolve.h"

#include <netdb.h>

#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/uv/guard.h"

namespace dsgd::transport::uv {

namespace {

Status unresolved(const std::string& host, const std::string& why, Code code = Code::kUnreachable) {
  return Status(code, "cannot resolve the host name '" + host + "': " + why +
                          "; check the name, or give a numeric address");
}

std::vector<SocketAddress> collect(const addrinfo* list) {
  std::vector<SocketAddress> addresses;
  for (; list; list = list->ai_next) {
    if (list->ai_family != AF_INET && list->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, list->ai_addr, list->ai_addrlen);
    address.length = list->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

Addresses ask_system(const ParsedAddress& address, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  const bool any = passive && (address.host.empty() || address.host == "*");
  addrinfo* list = nullptr;
  const int error = getaddrinfo(any ? nullptr : address.host.c_str(), address.port.c_str(), &hints, &list);
  if (error != 0) return unresolved(address.host, gai_strerror(error));
  auto addresses = collect(list);
  freeaddrinfo(list);
  if (addresses.empty()) return unresolved(address.host, "it has no IP address");
  return addresses;
}

// Calls `done` with the system's answer on a thread of its own, or at once if there can be no thread.
template <typename Done>
void ask_on_thread(const ParsedAddress& address, bool passive, Done done) {
  try {
    const SignalsBlocked blocked;
    std::thread([address, passive, done] { done(ask_system(address, passive)); }).detach();
  } catch (const std::system_error& error) {
    done(Status(Code::kLimit, "cannot start a thread to resolve '" + address.host + "': " + error.what()));
  }
}

}  // namespace

struct Resolver::Mailbox {
  std::mutex mutex;
  Resolver* resolver;  // null once it has ended
};

Resolver::Resolver(UvLoop& loop) : loop_(loop), mailbox_(std::make_shared<Mailbox>()) {
  mailbox_->resolver = this;
}

void Resolver::end() {
  std::lock_guard lock(mailbox_->mutex);
  mailbox_->resolver = nullptr;
}

std::shared_ptr<Resolver::Done> Resolver::resolve(const ParsedAddress& address, Done done) {
  auto waiter = std::make_shared<Done>(std::move(done));
  const std::string key = address.host + ' ' + address.port;
  const auto [place, is_new] = look_ups_.try_emplace(key);
  LookUp& look_up = place->second;
  look_up.waiters.push_back(waiter);
  const auto deliver = [mailbox = mailbox_, key](Addresses answer) {
    std::lock_guard lock(mailbox->mutex);
    if (!mailbox->resolver) return;
    mailbox->resolver->loop_.post([mailbox, key, answer = std::move(answer)] {  // end() is called on the loop
      if (mailbox->resolver) mailbox->resolver->answered(key, answer);
    });
  };
  if (look_up.answer) {
    deliver(*std::exchange(look_up.answer, std::nullopt));
  } else if (is_new) {
    ask_on_thread(address, false, deliver);
  }
  return waiter;
}

void Resolver::answered(const std::string& key, const Addresses& answer) {
  const auto look_up = look_ups_.extract(key);  // a waiter may ask again
  bool told = false;
  for (const auto& waiter : look_up.mapped().waiters) {
    const std::shared_ptr<Done> done = waiter.lock();
    if (!done) continue;
    told = true;
    (*done)(answer);
  }
  if (!told) look_ups_[key].answer = answer;
}

void ResolveLimit::set(Time until) {
  std::lock_guard lock(mutex_);
  until_ = until;
  changed_.notify_all();
}

Addresses resolve_now(const ParsedAddress& address, bool passive,
                      const std::shared_ptr<ResolveLimit>& limit) {
  auto numeric = numeric_addresses(address);
  if (!numeric.ok() || !numeric.value().empty()) return numeric;
  const auto answer = std::make_shared<std::optional<Addresses>>();  // under limit->mutex_
  ask_on_thread(address, passive, [answer, limit](Addresses result) {
    std::lock_guard lock(limit->mutex_);
    *answer = std::move(result);
    limit->changed_.notify_all();
  });
  std::unique_lock lock(limit->mutex_);
  for (;;) {
    if (*answer) return std::move(**answer);
    if (limit->until_ == kNever) {
      limit->changed_.wait(lock);
      continue;
    }
    const Duration left = limit->until_ - boot_time();
    if (left <= Duration{}) return unresolved(address.host, "no answer in time", Code::kTimeout);
    limit->changed_.wait_for(lock, left);
  }
}

}  // namespace dsgd::transport::uv

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

class Resolution {
 public:
  // Where the thread leaves its result. The handle takes the loop away when it goes.
  struct Mailbox {
    std::mutex mutex;
    UvLoop* loop;
    std::function<void(Addresses)> done;
  };

  explicit Resolution(std::shared_ptr<Mailbox> mailbox) : mailbox_(std::move(mailbox)) {}
  ~Resolution() {
    std::lock_guard lock(mailbox_->mutex);
    mailbox_->loop = nullptr;
    mailbox_->done = nullptr;
  }

  static void deliver(const std::shared_ptr<Mailbox>& mailbox, Addresses result) {
    std::lock_guard lock(mailbox->mutex);
    if (!mailbox->loop) return;
    mailbox->loop->post([mailbox, result = std::move(result)] {
      std::function<void(Addresses)> done;
      {
        std::lock_guard inner(mailbox->mutex);
        done = std::move(mailbox->done);
        mailbox->done = nullptr;
      }
      if (done) done(result);
    });
  }

 private:
  const std::shared_ptr<Mailbox> mailbox_;
};

std::shared_ptr<Resolution> resolve(UvLoop& loop, const ParsedAddress& address,
                                    std::function<void(Addresses)> done) {
  auto mailbox = std::make_shared<Resolution::Mailbox>();
  mailbox->loop = &loop;
  mailbox->done = std::move(done);
  ask_on_thread(address, false,
                [mailbox](Addresses result) { Resolution::deliver(mailbox, std::move(result)); });
  return std::make_shared<Resolution>(std::move(mailbox));
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

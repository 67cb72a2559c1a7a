#include "transport/uv/resolve.h"

#include <netdb.h>

#include <algorithm>
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

}  // namespace

void find_addresses(const ParsedAddress& address, bool passive, std::function<void(Addresses)> done) {
  auto numeric = numeric_addresses(address);
  if (!numeric.ok() || !numeric.value().empty()) return done(std::move(numeric));
  try {
    const SignalsBlocked blocked;
    std::thread([address, passive, done] { done(ask_system(address, passive)); }).detach();
  } catch (const std::system_error& error) {
    done(Status(Code::kLimit, "cannot start a thread to resolve '" + address.host + "': " + error.what()));
  }
}

std::shared_ptr<Resolver::Done> Resolver::resolve(const ParsedAddress& address, Done done) {
  auto waiter = std::make_shared<Done>(std::move(done));
  const std::string key = address.host + ' ' + address.port;
  const auto [place, is_new] = look_ups_.try_emplace(key);
  LookUp& look_up = place->second;
  look_up.waiters.push_back(waiter);
  const auto deliver = [this, poster = poster_, key](Addresses answer) {
    poster->post([this, key, answer = std::move(answer)] { answered(key, answer); });
  };
  if (look_up.answer) {
    deliver(*std::exchange(look_up.answer, std::nullopt));
  } else if (is_new) {
    find_addresses(address, false, deliver);
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

LookUps::LookUps(std::vector<ParsedAddress> addresses, bool passive, std::shared_ptr<ResolveLimit> limit)
    : addresses_(std::move(addresses)),
      limit_(std::move(limit)),
      look_ups_(std::make_shared<std::vector<LookUp>>(addresses_.size())),
      began_(boot_time()) {
  for (size_t i = 0; i < addresses_.size(); ++i) {
    const auto take = [i, limit = limit_, look_ups = look_ups_](Addresses answer) {
      std::lock_guard lock(limit->mutex_);
      (*look_ups)[i].answer = std::move(answer);
      limit->changed_.notify_all();
    };
    find_addresses(addresses_[i], passive, take);
  }
}

Result<LookUps::Found> LookUps::next() {
  std::unique_lock lock(limit_->mutex_);
  for (;;) {
    const Time now = boot_time();
    Time wake = limit_->until_;
    Status failure;
    const ParsedAddress* silent = nullptr;  // the first
    for (size_t i = 0; i < addresses_.size(); ++i) {
      LookUp& look_up = (*look_ups_)[i];
      if (look_up.used) continue;
      if (!look_up.answer) {
        if (!silent) silent = &addresses_[i];
        // A later address is not used before this one has had its time.
        const Time patient_until = began_ + kPatience * static_cast<int64_t>(i + 1);
        if (now >= patient_until) continue;
        wake = std::min(wake, patient_until);
        break;
      }
      if (look_up.answer->ok()) {
        look_up.used = true;
        return Found{i, std::move(*look_up.answer).value()};
      }
      if (failure.ok()) failure = look_up.answer->status();
    }
    if (!silent) return failure.ok() ? Status(Code::kUnreachable, "there is no other address") : failure;
    if (now >= limit_->until_) return unresolved(silent->host, "no answer in time", Code::kTimeout);
    if (wake == kNever)
      limit_->changed_.wait(lock);
    else
      limit_->changed_.wait_for(lock, wake - now);
  }
}

Addresses resolve_now(const ParsedAddress& address, bool passive,
                      const std::shared_ptr<ResolveLimit>& limit) {
  auto found = LookUps({address}, passive, limit).next();
  if (!found.ok()) return found.status();
  return std::move(found).value().addresses;
}

}  // namespace dsgd::transport::uv

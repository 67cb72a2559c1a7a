#include "core/membership/refusal_log.h"

#include <chrono>
#include <map>

namespace dsgd {
namespace {

constexpr std::chrono::seconds kWindow{10};

}  // namespace

struct RefusalLog::State : std::enable_shared_from_this<State> {
  State(transport::Loop& l, std::shared_ptr<Log> g) : loop(l), log(std::move(g)) {}

  transport::Loop& loop;
  const std::shared_ptr<Log> log;
  std::map<std::string, uint64_t> further;  // by cause, while its window is open

  void open_window(const std::string& cause) {
    loop.schedule(loop.now() + kWindow, [weak = weak_from_this(), cause] {
      if (auto self = weak.lock()) self->end_window(cause);
    });
  }

  void end_window(const std::string& cause) {
    const auto entry = further.find(cause);
    const uint64_t count = entry->second;
    if (count == 0) {
      further.erase(entry);
      return;
    }
    entry->second = 0;
    log->warning(std::to_string(count) +
                 (count == 1 ? " further connection was" : " further connections were") +
                 " refused in the last " + std::to_string(kWindow.count()) + " s because " + cause);
    open_window(cause);
  }
};

RefusalLog::RefusalLog(transport::Loop& loop, std::shared_ptr<Log> log)
    : state_(std::make_shared<State>(loop, std::move(log))) {}

void RefusalLog::note(const std::string& cause, const std::string& message) {
  const auto [entry, first] = state_->further.try_emplace(cause, 0);
  if (!first) {
    ++entry->second;
    return;
  }
  state_->log->warning(message);
  state_->open_window(cause);
}

}  // namespace dsgd

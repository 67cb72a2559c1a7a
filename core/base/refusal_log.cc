#include "core/base/refusal_log.h"

#include <chrono>
#include <map>
#include <utility>

namespace dsgd {
namespace {

constexpr std::chrono::seconds kWindow{10};

}  // namespace

struct RefusalLog::State : std::enable_shared_from_this<State> {
  State(transport::Loop& l, std::shared_ptr<Log> g) : loop(l), log(std::move(g)) {}

  transport::Loop& loop;
  const std::shared_ptr<Log> log;
  std::map<std::string, uint64_t> further;  // by cause or event, while its window is open

  // `summary`: makes the line about `count` further ones.
  using Summary = std::string (*)(const std::string& key, uint64_t count);

  void note(const std::string& key, const std::string& message, Summary summary) {
    const auto [entry, first] = further.try_emplace(key, 0);
    if (!first) {
      ++entry->second;
      return;
    }
    log->warning(message);
    open_window(key, summary);
  }

  void open_window(const std::string& key, Summary summary) {
    loop.schedule(loop.now() + kWindow, [weak = weak_from_this(), key, summary] {
      if (auto self = weak.lock()) self->end_window(key, summary);
    });
  }

  void end_window(const std::string& key, Summary summary) {
    const auto entry = further.find(key);
    const uint64_t count = std::exchange(entry->second, 0);
    if (count == 0) {
      further.erase(entry);
      return;
    }
    log->warning(summary(key, count));
    open_window(key, summary);
  }
};

RefusalLog::RefusalLog(transport::Loop& loop, std::shared_ptr<Log> log)
    : state_(std::make_shared<State>(loop, std::move(log))) {}

void RefusalLog::note(const std::string& cause, const std::string& message) {
  state_->note(cause, message, [](const std::string& key, uint64_t count) {
    return "further connections refused in the last " + std::to_string(kWindow.count()) + " s because " +
           key + ": " + std::to_string(count);
  });
}

void RefusalLog::note_event(const std::string& event, const std::string& message) {
  state_->note(event, message, [](const std::string& key, uint64_t count) {
    return std::to_string(count) + " more in the last " + std::to_string(kWindow.count()) + " s: " + key;
  });
}

}  // namespace dsgd

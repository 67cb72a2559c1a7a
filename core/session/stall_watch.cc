#include "core/session/stall_watch.h"

#include <algorithm>
#include <string>
#include <utility>

namespace dsgd {

StallWatch::StallWatch(transport::Loop& loop, transport::Duration interval, std::shared_ptr<Log> log, Ask ask)
    : loop_(loop), interval_(interval), log_(std::move(log)), ask_(std::move(ask)) {}

void StallWatch::begin(uint64_t call) {
  const transport::Time now = loop_.now();
  open_[call] = {now, now + interval_, interval_};
  if (timer_ == 0) arm();
}

void StallWatch::arm() {
  if (open_.empty()) return;
  const auto first = std::min_element(
      open_.begin(), open_.end(), [](const auto& a, const auto& b) { return a.second.due < b.second.due; });
  timer_ = loop_.schedule(first->second.due, [this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) look();
  });
}

void StallWatch::look() {
  timer_ = 0;
  const transport::Time now = loop_.now();
  for (auto& [call, open] : open_) {
    if (open.due > now) continue;
    open.interval *= 2;
    open.due = now + open.interval;
    const Status waiting = ask_(call);
    if (waiting.ok()) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - open.began).count();
    log_->warning(waiting.operation() + " has not ended after " + std::to_string(seconds) +
                  " s: " + waiting.message());
  }
  arm();
}

void StallWatch::close() {
  if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
  open_.clear();
}

}  // namespace dsgd

#include "core/session/stall_watch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/while_alive.h"

namespace dsgd {

StallWatch::StallWatch(transport::Loop& loop, transport::Duration interval, std::shared_ptr<Log> log)
    : loop_(loop), interval_(interval), log_(std::move(log)) {}

uint64_t StallWatch::begin(Ask ask) {
  const transport::Time now = loop_.now();
  open_[++tickets_] = {now, now + interval_, interval_, std::move(ask)};
  if (timer_ == 0 || timer_due_ > now + interval_) arm();
  return tickets_;
}

void StallWatch::arm() {
  if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
  if (open_.empty()) return;
  const auto first = std::min_element(
      open_.begin(), open_.end(), [](const auto& a, const auto& b) { return a.second.due < b.second.due; });
  timer_due_ = first->second.due;
  timer_ = loop_.schedule(timer_due_, if_alive(alive_, [this] { warn_of_due_calls(); }));
}

void StallWatch::warn_of_due_calls() {
  timer_ = 0;
  const transport::Time now = loop_.now();
  for (auto& [ticket, open] : open_) {
    if (open.due > now) continue;
    open.interval *= 2;
    open.due = now + open.interval;
    const WaitReport report = open.ask();
    if (!report.known()) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - open.began).count();
    log_->warning(report.text.operation() + " has not ended after " + std::to_string(seconds) +
                  " s: " + report.text.message());
  }
  arm();
}

void StallWatch::each(
    const std::function<void(uint64_t ticket, transport::Duration open, const WaitReport&)>& use) const {
  for (const auto& [ticket, open] : open_) use(ticket, loop_.now() - open.began, open.ask());
}

void StallWatch::close() {
  if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
  open_.clear();
}

}  // namespace dsgd

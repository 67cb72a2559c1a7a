#include "messages.h"

#include <algorithm>
#include <cstdio>

namespace job {
namespace {

constexpr std::chrono::milliseconds kHold{500};

}  // namespace

void Messages::add(const std::string& line) {
  int rank = -1;
  std::sscanf(line.c_str(), "[%d] ", &rank);
  held_.push_back({Clock::now() + kHold, rank, line});
}

void Messages::report(const std::string& text) {
  int rank = -1;
  if (std::sscanf(text.c_str(), "[%d] ", &rank) == 1 || std::sscanf(text.c_str(), "worker %d ", &rank) == 1)
    failed_rank_ = rank;
}

void Messages::show_due() {
  const auto now = Clock::now();
  for (; failed_rank_ < 0 && !held_.empty() && held_.front().due <= now; held_.pop_front())
    show_(held_.front().text);
}

void Messages::show_rest() {
  for (const Line& line : held_)
    if (failed_rank_ < 0 || line.rank < 0 || line.rank == failed_rank_) show_(line.text);
  held_.clear();
}

int Messages::milliseconds_until_due() const {
  if (failed_rank_ >= 0 || held_.empty()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(held_.front().due - Clock::now());
  return std::max(0, static_cast<int>(left.count()));
}

}  // namespace job

// Lines that workers print for people. When a worker fails, each other one prints that it is missing, often
// before the launcher reports the failure. So lines are held back for a moment, and once there is a report
// only those of the worker that failed are shown.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <string>

namespace job {

class Messages {
 public:
  explicit Messages(std::function<void(const std::string&)> show) : show_(std::move(show)) {}

  void add(const std::string& line);  // "[2] out of memory"
  // Takes a report of the launcher: "[2] digits_c failed with status 3; ending the others", or "worker 2
  // failed first: ...", which comes last.
  void report(const std::string& text);
  // Shows the lines that have been held back long enough, or all that are to be shown at all.
  void show_due();
  void show_rest();
  int milliseconds_until_due() const;  // -1: there is no line

 private:
  using Clock = std::chrono::steady_clock;
  struct Line {
    Clock::time_point due;
    int rank;
    std::string text;
  };

  const std::function<void(const std::string&)> show_;
  std::deque<Line> held_;
  int failed_rank_ = -1;  // -1: no worker has been reported
};

}  // namespace job

// Tells the user what `dsgd run` waits for.
#pragma once

#include <chrono>
#include <string>

namespace dsgd_tool {

// A condition that `dsgd run` may have to wait for.
class WaitNote {
 public:
  using Clock = std::chrono::steady_clock;
  // `what`: "the head at 10.0.0.1:7700". Without `periodic` there is a message only at an interrupt.
  explicit WaitNote(std::string what, bool periodic = true) : what_(std::move(what)), periodic_(periodic) {}

  void begin(const std::string& why);  // starts waiting, or changes the reason
  void end();
  // When print_if_due() prints next: 3, 6, 12 s after the beginning and so on. time_point::max(): not
  // waiting.
  Clock::time_point due() const { return due_; }
  void print_if_due();
  void print_interrupted() const;

 private:
  std::string text(Clock::time_point now) const;

  const std::string what_;
  const bool periodic_;
  std::string why_;
  Clock::time_point began_ = Clock::time_point::max(), due_ = Clock::time_point::max();  // max: not waiting
};

}  // namespace dsgd_tool

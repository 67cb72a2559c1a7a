// Copies what a child writes to a pipe to one of our descriptors, whole lines at a time, each with a prefix.
#pragma once

#include <string>

namespace dsgd_tool {

class LineOutput {
 public:
  // Takes `from`, which must be non-blocking; `to` stays the caller's.
  LineOutput(int from, int to, std::string prefix) : from_(from), to_(to), prefix_(std::move(prefix)) {}
  ~LineOutput();
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  int fd() const { return from_; }  // -1 after the end
  void copy();                      // what there is, without waiting
  void finish();                    // copies what there is, and an unfinished line too

 private:
  void write_lines(bool all);

  int from_;
  const int to_;
  const std::string prefix_;
  std::string pending_;
};

}  // namespace dsgd_tool

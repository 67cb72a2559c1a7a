// Copies what a child writes to a pipe to our output, whole lines at a time, each with a prefix.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "capi/tools/output_queue.h"

namespace dsgd_tool {

class LineOutput {
 public:
  // Takes `from`, which must be non-blocking; `to` stays the caller's.
  // Lines for which `on_line` returns true are not written.
  LineOutput(int from, OutputQueue& to, std::string prefix,
             std::function<bool(const std::string&)> on_line = nullptr)
      : from_(from), to_(to), prefix_(std::move(prefix)), on_line_(std::move(on_line)) {}
  ~LineOutput();
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  int fd() const { return from_; }                  // -1 after the end
  bool wants_input() const { return !to_.full(); }  // else copy() copies nothing, and the child has to wait
  const std::string& last_line() const { return last_line_; }
  void discard() { discard_ = true; }  // writes no further line
  void copy();                         // a block of what there is, without waiting
  void copy_all();                     // all that there is
  void finish();                       // copies what there is, and an unfinished line too

 private:
  ssize_t copy_block();
  void write_lines(bool all);
  void take_line(const std::string& line, std::string* text);

  int from_;
  OutputQueue& to_;
  const std::string prefix_;
  const std::function<bool(const std::string&)> on_line_;
  std::string pending_, last_line_;
  bool discard_ = false;
};

}  // namespace dsgd_tool

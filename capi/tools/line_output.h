// Copies what a child writes to a pipe to one of our descriptors, whole lines at a time, each with a prefix.
#pragma once

#include <functional>
#include <string>

namespace dsgd_tool {

// Returns 0 or an errno. On an error the rest is discarded; the workers go on.
int write_all(int fd, const std::string& text);

class LineOutput {
 public:
  // Takes `from`, which must be non-blocking; `to` stays the caller's.
  // Lines for which `on_line` returns true are not written.
  LineOutput(int from, int to, std::string prefix, std::function<bool(const std::string&)> on_line = nullptr)
      : from_(from), to_(to), prefix_(std::move(prefix)), on_line_(std::move(on_line)) {}
  ~LineOutput();
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  int fd() const { return from_; }  // -1 after the end
  const std::string& last_line() const { return last_line_; }
  int error() const { return error_; }  // 0, or the errno of the first line that was lost
  void discard() { discard_ = true; }   // writes no further line
  void copy();                          // what there is, without waiting
  void finish();                        // copies what there is, and an unfinished line too

 private:
  void write_lines(bool all);
  void take_line(const std::string& line, std::string* text);

  int from_;
  const int to_;
  const std::string prefix_;
  const std::function<bool(const std::string&)> on_line_;
  std::string pending_, last_line_;
  bool discard_ = false;
  int error_ = 0;
};

}  // namespace dsgd_tool

// The output of `dsgd run`. While workers run, it does not wait for the reader of its output: a reader that
// stalls does not keep it from supervising the workers.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>

namespace dsgd_tool {

// The text that has yet to be written to one descriptor. Any thread may add text.
class OutputQueue {
 public:
  // The queue of standard output or standard error. Both have one queue if they are the same file, which
  // keeps the order of their lines.
  static OutputQueue& of(int fd);

  // Takes whole lines of a worker's output, or of `dsgd run` itself. Writes what the reader takes at once.
  void add(std::string lines, bool of_worker);
  bool write_some();  // what the reader takes at once; returns whether that is anything
  void discard();     // forgets the lines
  int fd() const { return fd_; }
  bool empty() const;
  // There is so much that workers should wait. That is no limit: add() takes more.
  bool full() const;
  // Returns the errno of the first failed write of workers' lines since the last call; 0: none failed.
  int take_error();

 private:
  struct Entry {
    std::string lines;
    bool of_worker;
  };
  explicit OutputQueue(int fd);
  bool write_locked();

  const int fd_;
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
  size_t written_ = 0;  // bytes of the first entry
  size_t size_ = 0;     // bytes of all entries
  int error_ = 0;
};

// Writes a message of `dsgd run` to standard error.
[[gnu::format(printf, 1, 2)]] void print_message(const char* format, ...);

}  // namespace dsgd_tool

// A program of a simulated process, on a stack of its own. Control passes between it and the world by a
// switch of the stack, so one thread runs all, and the order of events depends on the seed alone.
#pragma once

#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace dsgd::transport {

struct Process;

class Program {
 public:
  Program(Process* process, std::function<void()> run);
  // The program must have returned, or never have run.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Process* process() const { return process_; }
  bool finished() const { return finished_; }
  bool is_current() const { return current_; }

  // World's side: lets the program run until it waits or returns.
  void run();
  // Program's side: lets the world run until it calls run() again.
  void yield();

  // The flag that the program waits for; null: it does not wait.
  const std::atomic<bool>* awaited = nullptr;
  uint64_t deadline_event = 0;

 private:
  struct Stack {
    const void* bottom = nullptr;
    size_t size = 0;
  };
  static void enter();
  void leave(void** fake_stack);  // for the world

  Process* const process_;
  const std::function<void()> program_;
  bool finished_ = false, current_ = false;
  void* const memory_;  // of the stack, with a page below it that catches an overflow
  Stack stack_, worlds_;
  ucontext_t own_{}, world_{};
};

}  // namespace dsgd::transport

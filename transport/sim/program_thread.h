// A thread that runs a program of a simulated process. Control passes between it and the world by semaphores:
// only one of them runs at a time, so the order of events depends on the seed alone.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <functional>
#include <thread>

#include "transport/loop.h"

namespace dsgd::transport {

struct Process;

// A counting semaphore that sleeps at once: std::binary_semaphore calls sched_yield first, which on a busy
// machine gives the processor to another process for milliseconds.
class Semaphore {
 public:
  Semaphore() { sem_init(&semaphore_, 0, 0); }
  ~Semaphore() { sem_destroy(&semaphore_); }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;
  void release() { sem_post(&semaphore_); }
  void acquire() {
    while (sem_wait(&semaphore_) != 0) {  // a signal came
    }
  }

 private:
  sem_t semaphore_;
};

class ProgramThread {
 public:
  ProgramThread(Process* process, std::function<void()> program)
      : process_(process), thread_([this, program = std::move(program)] {
          to_program_.acquire();
          program();
          finished_ = true;
          to_world_.release();
        }) {}
  // The program must have returned.
  ~ProgramThread() { thread_.join(); }

  Process* process() const { return process_; }
  bool finished() const { return finished_; }

  // World's side: lets the program run until it waits or returns.
  void run() {
    to_program_.release();
    to_world_.acquire();
  }
  // Program's side: lets the world run until it calls run() again.
  void yield() {
    to_world_.release();
    to_program_.acquire();
  }
  bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }

  // The flag that the program waits for; null: it does not wait.
  const std::atomic<bool>* awaited = nullptr;
  uint64_t deadline_event = 0;

 private:
  Process* const process_;
  bool finished_ = false;
  Semaphore to_program_, to_world_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace dsgd::transport

#include "transport/sim/program.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#ifdef DSGD_SANITIZED_ADDRESS
#include <sanitizer/asan_interface.h>
#endif

namespace dsgd::transport {

namespace {

constexpr size_t kStack = 8 << 20;  // of address space; memory comes with its use

Program* entering = nullptr;  // makecontext() passes no pointers

// The address sanitizer has to know of each switch of the stack. The one that is left keeps its fake stack in
// `fake`; null: it ends.
void begin_switch([[maybe_unused]] void** fake, [[maybe_unused]] const void* bottom,
                  [[maybe_unused]] size_t size) {
#ifdef DSGD_SANITIZED_ADDRESS
  __sanitizer_start_switch_fiber(fake, bottom, size);
#endif
}
void end_switch([[maybe_unused]] void* fake, [[maybe_unused]] const void** left_bottom,
                [[maybe_unused]] size_t* left_size) {
#ifdef DSGD_SANITIZED_ADDRESS
  __sanitizer_finish_switch_fiber(fake, left_bottom, left_size);
#endif
}

}  // namespace

Program::Program(Process* process, std::function<void()> run)
    : process_(process),
      program_(std::move(run)),
      memory_(
          mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (memory_ == MAP_FAILED || mprotect(memory_, page, PROT_NONE) != 0 || getcontext(&own_) != 0)
    std::abort();
  own_.uc_stack.ss_sp = static_cast<char*>(memory_) + page;
  own_.uc_stack.ss_size = kStack - page;
  own_.uc_link = nullptr;
  stack_ = {own_.uc_stack.ss_sp, own_.uc_stack.ss_size};
  makecontext(&own_, &Program::enter, 0);
}

Program::~Program() {
#ifdef DSGD_SANITIZED_ADDRESS
  __asan_unpoison_memory_region(stack_.bottom, stack_.size);  // frames that never returned
#endif
  munmap(memory_, kStack);
}

void Program::run() {
  void* fake = nullptr;
  entering = this;
  current_ = true;
  begin_switch(&fake, stack_.bottom, stack_.size);
  swapcontext(&world_, &own_);
  end_switch(fake, nullptr, nullptr);
}

void Program::enter() {
  Program& self = *entering;
  end_switch(nullptr, &self.worlds_.bottom, &self.worlds_.size);
  self.program_();
  self.finished_ = true;
  self.leave(nullptr);
}

void Program::yield() {
  void* fake = nullptr;
  leave(&fake);
  end_switch(fake, &worlds_.bottom, &worlds_.size);
}

void Program::leave(void** fake_stack) {
  current_ = false;
  begin_switch(fake_stack, worlds_.bottom, worlds_.size);
  swapcontext(&own_, &world_);
}

}  // namespace dsgd::transport

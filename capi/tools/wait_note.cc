#include "capi/tools/wait_note.h"

#include "capi/tools/output_queue.h"

#include <cstdio>

namespace dsgd_tool {
namespace {

constexpr std::chrono::seconds kFirstNote{3};

}  // namespace

void WaitNote::begin(const std::string& why) {
  why_ = why;
  if (began_ != Clock::time_point::max()) return;
  began_ = Clock::now();
  if (periodic_) due_ = began_ + kFirstNote;
}

void WaitNote::end() { began_ = due_ = Clock::time_point::max(); }

std::string WaitNote::text(Clock::time_point now) const {
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - began_);
  return "waiting for " + what_ + " (" + std::to_string(waited.count()) + " s)" + (why_.empty() ? "" : ": ") +
         why_;
}

void WaitNote::print_if_due() {
  const auto now = Clock::now();
  if (now < due_) return;
  print_message("dsgd run: %s\n", text(now).c_str());
  due_ = now + (now - began_);
}

void WaitNote::print_interrupted() const {
  if (began_ == Clock::time_point::max()) return;
  print_message("dsgd run: interrupted while %s\n", text(Clock::now()).c_str());
}

}  // namespace dsgd_tool

// The step in flight, for the parts of a step that wait: whether it still runs, and where they report
// failures. A report may end the step, and the host may begin the next one, before the report returns.
#pragma once

#include <functional>
#include <utility>

#include "transport/base/status.h"

namespace dsgd {

struct StepInFlight {
  using Report = std::function<void(const Status&)>;

  std::function<bool()> runs;  // false once the step has ended, and while it is suspended
  Report fail;                 // the step fails on all workers
  Report device_failed;        // the session fails, since no other worker knows of the failure
  Report team_failed;          // NCCL has failed, perhaps since a worker is lost: the session fails

  // Return a callback for what a step waits for; it does nothing unless the step runs. On an error or_fail()
  // calls fail, and or_device_failure() calls device_failed.
  Report or_fail(std::function<void()> then) const { return unless_ended(std::move(then), &fail); }
  Report or_device_failure(std::function<void()> then) const {
    return unless_ended(std::move(then), &device_failed);
  }

 private:
  Report unless_ended(std::function<void()> then, const Report* failed) const {
    return [this, failed, then = std::move(then)](const Status& status) {
      if (!runs()) return;
      status.ok() ? then() : (*failed)(status);
    };
  }
};

}  // namespace dsgd

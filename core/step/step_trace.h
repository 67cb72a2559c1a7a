// Measures the phases of each step and of its buckets, for the counters of steps (metrics/counters.h) and the
// session's trace. Each function but the accessors is called when a phase begins or ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/metrics/counters.h"
#include "core/step/step_state.h"
#include "transport/loop.h"

namespace dsgd {

class StepTrace {
 public:
  StepTrace(StepState& state, transport::Loop& loop) : state_(state), loop_(loop) {}
  metrics::StepCounters& counters() { return counters_; }
  const metrics::StepCounters& counters() const { return counters_; }  // any thread

  void begin_step();
  void gradients_marked(const std::vector<uint32_t>& buckets);
  void bucket_sent(size_t bucket);
  void bucket_reduced(size_t bucket);
  void all_reduced();  // the commit begins
  void bucket_updated(size_t bucket, transport::Time begun);
  void ended();
  void failed();
  void ended_elsewhere();  // the suspended step has the result of another worker

 private:
  void record(const char* name, transport::Time begin, transport::Time end, bool failed);
  void record_phases(transport::Time now, bool failed);
  void record_bucket(size_t bucket, const char* name, transport::Time begin, transport::Time end);

  StepState& state_;
  transport::Loop& loop_;
  metrics::StepCounters counters_;
  // Of the step in flight: its beginning; the last gradients were marked; all buckets were reduced.
  transport::Time begun_{}, marked_{}, reduced_at_{};
  bool reduced_ = false;
};

}  // namespace dsgd

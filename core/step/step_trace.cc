#include "core/step/step_trace.h"

namespace dsgd {

void StepTrace::begin_step() {
  begun_ = marked_ = loop_.now();
  reduced_ = false;
}

void StepTrace::gradients_marked(const std::vector<uint32_t>& buckets) {
  marked_ = loop_.now();
  for (uint32_t bucket : buckets) state_.buffers[bucket].progress.marked = marked_;
}

void StepTrace::bucket_sent(size_t index) { state_.buffers[index].progress.sent = loop_.now(); }

void StepTrace::bucket_reduced(size_t index) {
  const BucketBuffers::Progress& progress = state_.buffers[index].progress;
  const transport::Time now = loop_.now();
  const transport::Time sent = progress.contributed ? progress.sent : now;
  record_bucket(index, "gradients", begun_, progress.marked);
  record_bucket(index, "contribution", progress.marked, sent);
  if (!progress.contributed) return;
  record_bucket(index, "travel", sent, now);
  counters_.buckets.add(1);
  counters_.travel.add(now - sent);
}

void StepTrace::all_reduced() {
  reduced_ = true;
  reduced_at_ = loop_.now();
}

void StepTrace::bucket_updated(size_t index, transport::Time begun) {
  record_bucket(index, "update", begun, loop_.now());
}

void StepTrace::ended() {
  counters_.ended.add(1);
  if (state_.result.applied) counters_.applied.add(1);
  const transport::Time now = loop_.now();
  counters_.gradients.add(marked_ - begun_);
  counters_.reduction.add(reduced_at_ - marked_);
  counters_.update.add(now - reduced_at_);
  record_phases(now, false);
}

void StepTrace::failed() {
  counters_.ended.add(1);
  counters_.failed.add(1);
  record_phases(loop_.now(), true);
}

void StepTrace::ended_elsewhere() {
  counters_.ended.add(1);
  if (state_.result.applied) counters_.applied.add(1);
}

void StepTrace::record(const char* name, transport::Time begin, transport::Time end, bool failed) {
  if (state_.options.trace)
    state_.options.trace->record(
        {metrics::Track::kSteps, failed, 0, 0, name, state_.request.step, 0, begin, end});
}

// The phases that the step has reached; one that has failed ends now.
void StepTrace::record_phases(transport::Time now, bool failed) {
  const bool marked = state_.all_marked();
  record("gradients", begun_, marked ? marked_ : now, !marked);
  if (marked) record("reduction", marked_, reduced_ ? reduced_at_ : now, !reduced_);
  if (reduced_) record("update", reduced_at_, now, failed);
  record("step", begun_, now, failed);
}

void StepTrace::record_bucket(size_t index, const char* name, transport::Time begin, transport::Time end) {
  if (!state_.options.trace) return;
  const size_t nbytes = state_.plan[index].elements * dtype_size(state_.plan[index].dtype);
  state_.options.trace->record({metrics::Track::kBucket, false, 0, static_cast<uint32_t>(index), name,
                                state_.request.step, nbytes, begin, end});
}

}  // namespace dsgd

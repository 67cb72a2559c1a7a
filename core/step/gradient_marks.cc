#include "core/step/gradient_marks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/text.h"

namespace dsgd {
namespace {

std::string gradient_text(const Parameter& parameter, size_t replica) {
  return "the gradient of parameter '" + parameter.name + "' in replica " + std::to_string(replica);
}

}  // namespace

Status GradientMarks::set_plan(const std::vector<Bucket>& plan) {
  std::lock_guard lock(mutex_);
  const size_t parameters = model_.parameters.size();
  // The model may have changed since a dsgd_start that failed.
  const bool same = marks_.size() == model_.replicas.size() && marks_.front().size() == parameters;
  if (!same) marks_.assign(model_.replicas.size(), std::vector<Mark>(parameters, Mark::kNone));
  buckets_of_.assign(parameters, {});
  for (uint32_t b = 0; b < plan.size(); ++b) {
    for (uint32_t parameter : plan[b].parameters) buckets_of_[parameter].push_back(b);
  }
  unmarked_.resize(parameters);
  incomplete_.resize(plan.size());
  count();
  streams_.resize(model_.replicas.size());
  for (size_t r = 0; r < streams_.size(); ++r) {
    streams_[r].marked.assign(parameters, 0);
    streams_[r].buckets.clear();
    streams_[r].buckets.resize(plan.size());
    device::Device& device = *model_.replicas[r]->device;
    // One event for each bucket. note_stream() makes more if the host marks a bucket in several streams.
    for (size_t b = 0; b < plan.size() && !device.is_host(); ++b) {
      auto made = device.new_event();
      if (!made.ok()) return made.status();
      streams_[r].buckets[b].events.push_back(std::move(made).value());
    }
  }
  return {};
}

void GradientMarks::count() {
  std::fill(incomplete_.begin(), incomplete_.end(), 0);
  for (size_t p = 0; p < unmarked_.size(); ++p) {
    unmarked_[p] = static_cast<uint32_t>(std::count_if(
        marks_.begin(), marks_.end(), [p](const auto& of_replica) { return of_replica[p] == Mark::kNone; }));
    if (unmarked_[p] == 0) continue;
    for (uint32_t bucket : buckets_of_[p]) ++incomplete_[bucket];
  }
}

Status GradientMarks::mark(const Replica& replica, std::span<Parameter* const> parameters, bool absent,
                           void* stream, std::vector<uint32_t>* complete) {
  std::lock_guard lock(mutex_);
  std::vector<Mark>& marks = marks_[replica.index];
  const auto marked_before = [&](const Parameter& parameter) {
    const char* how = marks[parameter.index] == Mark::kAbsent ? "absent" : "ready";
    return Status(Code::kState, gradient_text(parameter, replica.index) + " was marked " + how +
                                    " before in this step; mark each once")
        .with_parameter(parameter.name);
  };
  size_t buckets = 0;
  for (const Parameter* parameter : parameters) {
    if (marks[parameter->index] != Mark::kNone) return marked_before(*parameter);
    buckets += buckets_of_[parameter->index].size();
  }
  for (const Parameter* parameter : parameters) {
    if (replica.device->is_host()) break;
    DSGD_RETURN_IF_ERROR(note_stream(replica, *parameter, stream));
  }
  complete->reserve(complete->size() + buckets);
  for (size_t i = 0; i < parameters.size(); ++i) {
    Mark& mark = marks[parameters[i]->index];
    if (mark != Mark::kNone) {  // the list names it twice
      Status status = marked_before(*parameters[i]);
      while (i > 0) marks[parameters[--i]->index] = Mark::kNone;
      return status;
    }
    mark = absent ? Mark::kAbsent : Mark::kReady;
  }
  for (const Parameter* parameter : parameters) {
    if (!replica.device->is_host()) streams_[replica.index].marked[parameter->index] = 1;
    if (--unmarked_[parameter->index] > 0) continue;
    for (uint32_t bucket : buckets_of_[parameter->index]) {
      if (--incomplete_[bucket] == 0) complete->push_back(bucket);
    }
  }
  return {};
}

void GradientMarks::unmark(const Replica& replica, std::span<Parameter* const> parameters) {
  std::lock_guard lock(mutex_);
  for (const Parameter* parameter : parameters) {
    marks_[replica.index][parameter->index] = Mark::kNone;
    streams_[replica.index].marked[parameter->index] = 0;
  }
  count();
}

std::vector<uint32_t> GradientMarks::mark_rest() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> complete;
  for (uint32_t bucket = 0; bucket < incomplete_.size(); ++bucket) {
    if (incomplete_[bucket] > 0) complete.push_back(bucket);
  }
  replace(Mark::kNone, Mark::kRest);
  std::fill(unmarked_.begin(), unmarked_.end(), 0);
  std::fill(incomplete_.begin(), incomplete_.end(), 0);
  return complete;
}

void GradientMarks::unmark_rest() {
  std::lock_guard lock(mutex_);
  replace(Mark::kRest, Mark::kNone);
  count();
}

void GradientMarks::replace(Mark from, Mark to) {
  for (auto& of_replica : marks_) std::replace(of_replica.begin(), of_replica.end(), from, to);
}

std::vector<uint32_t> GradientMarks::complete_buckets() const {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> complete;
  for (uint32_t bucket = 0; bucket < incomplete_.size(); ++bucket) {
    if (incomplete_[bucket] == 0) complete.push_back(bucket);
  }
  return complete;
}

void GradientMarks::clear(bool absences) {
  std::lock_guard lock(mutex_);
  replace(Mark::kReady, Mark::kNone);
  replace(Mark::kRest, Mark::kNone);
  if (absences) replace(Mark::kAbsent, Mark::kNone);
  count();
  for (ReplicaStreams& of_replica : streams_) {
    std::fill(of_replica.marked.begin(), of_replica.marked.end(), 0);
    for (BucketStreams& of_bucket : of_replica.buckets) of_bucket.streams.clear();
    of_replica.streams.clear();
  }
}

UnmarkedGradients GradientMarks::unmarked() const {
  std::lock_guard lock(mutex_);
  constexpr size_t kNamed = 3;
  UnmarkedGradients found;
  std::vector<std::string> names;
  size_t count = 0;
  for (size_t p = 0; p < unmarked_.size(); ++p) {
    for (size_t r = 0; r < marks_.size(); ++r) {
      if (buckets_of_[p].empty() || marks_[r][p] != Mark::kNone || ++count > kNamed) continue;
      const std::string& name = model_.parameters[p]->name;
      if (count == 1) found.parameter = name;
      names.push_back("'" + name + "'" + (marks_.size() > 1 ? " of replica " + std::to_string(r) : ""));
    }
  }
  if (count == 0) return found;
  found.text = (count == 1 ? "gradient " : "gradients ") + list_text(names, count) +
               (count == 1 ? " was not marked" : " were not marked");
  return found;
}

// ---- streams

// The event is also recorded now: an invalid stream is reported to the caller and not remembered.
Status GradientMarks::note_stream(const Replica& replica, const Parameter& parameter, void* stream) {
  ReplicaStreams& of_replica = streams_[replica.index];
  if (device::is_default_stream(stream)) stream = nullptr;
  for (uint32_t bucket : buckets_of_[parameter.index]) {
    auto& [streams, events] = of_replica.buckets[bucket];
    if (std::any_of(streams.begin(), streams.end(),
                    [stream](const Stream& known) { return known.stream == stream; }))
      continue;
    if (events.size() == streams.size()) {
      auto made = replica.device->new_event();
      if (!made.ok()) return made.status();
      events.push_back(std::move(made).value());
    }
    if (Status status = replica.device->record_stream(*events[streams.size()], stream); !status.ok()) {
      return Status(status.code(), "the stream given for " + gradient_text(parameter, replica.index) +
                                       " cannot be used: " + status.message())
          .with_parameter(parameter.name);
    }
    streams.push_back({stream, parameter.index});
  }
  if (!stream) return {};  // the default stream always sees the new values
  auto& streams = of_replica.streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  return {};
}

Status GradientMarks::record_streams(uint32_t bucket) {
  std::lock_guard lock(mutex_);
  for (size_t r = 0; r < streams_.size(); ++r) {
    const BucketStreams& of_bucket = streams_[r].buckets[bucket];
    for (size_t s = 0; s < of_bucket.streams.size(); ++s) {
      const auto [stream, parameter] = of_bucket.streams[s];
      Status status = model_.replicas[r]->device->record_stream(*of_bucket.events[s], stream);
      if (status.ok()) continue;
      const char* const problem =
          status.code() == Code::kState
              ? " was marked cannot be used now: "
              : " was marked can no longer be used; keep it until the step has ended: ";
      return Status(status.code(), "the stream in which " + gradient_text(*model_.parameters[parameter], r) +
                                       problem + status.message())
          .with_parameter(model_.parameters[parameter]->name);
    }
  }
  return {};
}

Status GradientMarks::follow_streams(uint32_t replica, uint32_t bucket, device::WorkQueue& queue) const {
  const BucketStreams& of_bucket = streams_[replica].buckets[bucket];
  for (size_t s = 0; s < of_bucket.streams.size(); ++s)
    DSGD_RETURN_IF_ERROR(queue.wait(*of_bucket.events[s]));
  return {};
}

Status GradientMarks::order_streams_after(uint32_t replica, device::DeviceEvent& event) const {
  std::lock_guard lock(mutex_);  // gradients of frozen parameters, which no step waits for, may be marked now
  for (void* stream : streams_[replica].streams)
    DSGD_RETURN_IF_ERROR(model_.replicas[replica]->device->stream_wait(stream, event));
  return {};
}

Status GradientMarks::order_after_values(const Replica& replica, void* stream) {
  std::lock_guard lock(mutex_);
  auto& values = streams_[replica.index].values;
  if (!values) DSGD_RETURN_IF_ERROR(replica.device->new_event().into(&values));
  DSGD_RETURN_IF_ERROR(replica.device->record_stream(*values, nullptr));
  return replica.device->stream_wait(stream, *values);
}

}  // namespace dsgd

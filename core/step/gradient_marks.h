// The gradients that the host has marked for the step, and the streams in which those on a device are
// complete.
//
// A bucket is complete when its gradients are marked, as ready or absent, on all replicas. The session tells
// the step of each complete bucket once, by a task on the loop. From then on the step reads the marks of the
// bucket without the lock: they change only when the step has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/model/model.h"
#include "core/model/step_result.h"
#include "core/strategy/plan.h"

namespace dsgd {

class GradientMarks {
 public:
  explicit GradientMarks(const Model& model) : model_(model) {}

  // Keeps absences that were marked before. Loop only, with no step in flight. Fails for want of memory.
  Status set_plan(const std::vector<Bucket>& plan);

  // ---- any thread

  // Marks all of these gradients, or none if one cannot be marked. Adds the buckets that are complete with
  // them to `complete`. `stream`: of the replica's device; null: its default stream.
  Status mark(const Replica& replica, std::span<Parameter* const> parameters, bool absent, void* stream,
              std::vector<uint32_t>* complete);
  // Undoes a successful mark() whose buckets were not reported to the step.
  void unmark(const Replica& replica, std::span<Parameter* const> parameters);
  // Marks the rest as ready. Returns the buckets that are complete with them.
  std::vector<uint32_t> mark_rest();
  void unmark_rest();  // undoes that, as unmark() does
  std::vector<uint32_t> complete_buckets() const;
  // For a complete bucket, before the step is told: the step will wait for the work that its streams have
  // now. kState: the host is capturing a graph, and may mark the gradients again afterwards. Other failures
  // are fatal, since the streams were valid when the gradients were marked.
  Status record_streams(uint32_t bucket);
  // Forgets the marks. `absences`: those too; else they apply to a repetition of the step.
  void clear(bool absences);
  // The gradients that keep the step from ending.
  UnmarkedGradients unmarked() const;
  // Makes a stream wait for the new values, which the default stream sees.
  Status order_after_values(const Replica& replica, void* stream);

  // ---- the step, on the loop

  // Whether the host has marked the gradient as absent. Its bucket is complete.
  bool is_absent(uint32_t replica, uint32_t parameter) const {
    return marks_[replica][parameter] == Mark::kAbsent;
  }
  // Returns whether the host marked the gradient explicitly, so its stream is known. mark_rest() knows none.
  bool has_stream(uint32_t replica, uint32_t parameter) const { return streams_[replica].marked[parameter]; }
  // Makes `queue` wait for what record_streams() has recorded of this replica.
  Status follow_streams(uint32_t replica, uint32_t bucket, device::WorkQueue& queue) const;
  // Makes the streams of this step's marks wait for `event`.
  Status order_streams_after(uint32_t replica, device::DeviceEvent& event) const;

 private:
  enum class Mark : char { kNone, kReady, kAbsent, kRest };  // kRest: ready by mark_rest()
  struct Stream {
    void* stream;
    uint32_t parameter;  // the first one that was marked there
  };
  struct BucketStreams {
    std::vector<Stream> streams;  // in this step
    // Of these. Recorded when the bucket is complete, so that one serves all its gradients in a stream. Kept
    // for later steps.
    std::vector<std::unique_ptr<device::DeviceEvent>> events;
  };
  struct ReplicaStreams {
    std::vector<BucketStreams> buckets;
    std::vector<char> marked;                     // by parameter, in this step
    std::vector<void*> streams;                   // of this step's marks, each once
    std::unique_ptr<device::DeviceEvent> values;  // recorded in the default stream
  };

  void replace(Mark from, Mark to);
  void count();
  Status note_stream(const Replica& replica, const Parameter& parameter, void* stream);

  const Model& model_;
  mutable std::mutex mutex_;
  std::vector<std::vector<Mark>> marks_;           // by replica, by parameter
  std::vector<ReplicaStreams> streams_;            // by replica; unused on the host
  std::vector<uint32_t> unmarked_;                 // by parameter: replicas that have not marked it
  std::vector<std::vector<uint32_t>> buckets_of_;  // by parameter
  std::vector<uint32_t> incomplete_;               // by bucket: parameters not marked on all replicas
};

}  // namespace dsgd

// Values and optimizer state of this worker as a stream of parts, for a worker that joins while this one
// trains on. A part has the elements of a range as they are when it is given out. Unless the stream begins
// again, the parts have each element once. Steps go on meanwhile. The sums of each later step follow, for the
// elements that were given out before it. The receiver makes the same updates from them, by the same
// arithmetic.
//
// So no copy of the model is made. The sums wait in memory until the receiver asks for them. If they have
// more bytes than the elements that were given out, or if there is no memory for them, the stream begins
// again: it drops them and gives out these elements again, with their values at that time.
//
// A device makes these copies between two updates, so the elements of an answer have exactly the updates that
// were noted before begin_answer(). The next update waits for the copies of one answer.
//
// Elements are numbered through all trained parameters, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/model/model.h"
#include "core/step/device_context.h"
#include "transport/messages.h"

namespace dsgd {

class StateStream {
 public:
  using Part = transport::StateParts::Part;

  // Of elements [begin, end). `with_state`: the parts have the optimizer's state. Where the owners of ranges
  // keep it, StatePlacement moves it.
  StateStream(const Model& model, uint64_t begin, uint64_t end, bool with_state);
  // Notes an update that is about to be made; `update` has all but the data, `sums` its elements, of the
  // parameter's wide type.
  void note(const Part& update, const std::byte* sums);
  // Chooses the next parts, and enqueues the copies of elements to the context's staging memory; those of the
  // host are copied at once. `state`: of the context.
  Status begin_answer(DeviceContext& context, const OptimizerState& state);
  // Returns these parts. Call it when the copies have ended.
  std::vector<Part> end_answer(const DeviceContext& context);
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  // Nothing is left to give out, until the next update.
  bool whole() const { return log_.empty() && next_ == end_; }

 private:
  struct Update {
    Part part;  // without data
    size_t nbytes;
    std::unique_ptr<std::byte[]> sums;
  };

  Status append_elements(DeviceContext& context, const OptimizerState& state);
  void begin_again();

  const Model& model_;
  const std::vector<uint64_t> first_;  // by parameter: its first element; the last entry: all elements
  const uint64_t begin_, end_;
  const bool with_state_;
  uint64_t next_;           // first element that has not been given out
  size_t given_bytes_ = 0;  // of elements [begin_, next_)
  std::deque<Update> log_;
  size_t logged_bytes_ = 0;
  std::vector<Part> answer_;  // from begin_answer() to end_answer()
  size_t answer_bytes_ = 0;
};

// Returns why the parts that another worker has given out do not fit the model, else OK.
Status check_parts(std::span<const StateStream::Part> parts, const Model& model, bool with_state);
// Enqueues these parts, which fit, into the context's replicas and their state. The context's staging memory
// is in use until that is done.
Status apply_parts(std::span<const StateStream::Part> parts, Model& model, DeviceContext& context,
                   OptimizerState& state, bool with_state);

// Elements of all trained parameters.
uint64_t trained_elements(const Model& model);
// Bytes of these elements in a stream.
size_t bytes_of_elements(const Model& model, uint64_t begin, uint64_t end, bool with_state);
// Calls visit(parameter, begin, end) for each trained parameter with elements in [begin, end).
void for_ranges(const Model& model, uint64_t begin, uint64_t end,
                const std::function<void(const Parameter& parameter, uint64_t begin, uint64_t end)>& visit);

}  // namespace dsgd

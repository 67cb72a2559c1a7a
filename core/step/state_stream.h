// Values and optimizer state of this worker as a stream of parts, for a worker that joins while this one
// trains on. A part has the elements of a range as they are when it is given out; all parts together have
// each element once. Steps go on meanwhile. The sums of each later step follow, for the elements that were
// given out before it. The receiver makes the same updates from them, by the same arithmetic.
//
// So no copy of the model is made, and no step waits. The sums wait in memory until the receiver asks for
// them, up to a limit: a receiver that is too slow begins again.
//
// Elements are numbered through all trained parameters, one after the other. Host memory only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/base/dtype.h"
#include "core/model/model.h"
#include "core/step/device_context.h"
#include "transport/messages.h"

namespace dsgd {

class StateStream {
 public:
  using Part = transport::StateParts::Part;

  // Of elements [begin, end). `with_state`: else the owners of ranges keep the optimizer's state, and give it
  // in another way.
  StateStream(const Model& model, uint64_t begin, uint64_t end, bool with_state);
  // Notes an update that is about to be made; `update` has all but the data, `sums` its elements, of the
  // parameter's wide type.
  void note(const Part& update, const std::byte* sums);
  // Returns the next parts.
  std::vector<Part> take(const OptimizerState& state);
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  bool whole() const { return log_.empty() && next_ == end_; }
  // The receiver was too slow, or there was no memory for the sums.
  bool overflown() const { return overflown_; }

 private:
  struct Update {
    Part part;  // without data
    size_t nbytes;
    std::unique_ptr<std::byte[]> sums;
  };

  Part take_state(const OptimizerState& state, size_t most);

  const Model& model_;
  const std::vector<uint64_t> first_;  // by parameter: number of its first element; and of all elements
  const uint64_t begin_, end_;
  const bool with_state_;
  size_t limit_ = 0;  // bytes of the log
  uint64_t next_;     // element that has not been given out
  std::deque<Update> log_;
  size_t logged_ = 0;  // bytes
  bool overflown_ = false;
};

// Elements of all trained parameters.
uint64_t trained_elements(const Model& model);
// Takes a part that another worker has given out, into all replicas, which are on the host.
Status take_part(const StateStream::Part& part, Model& model, DeviceContext& host, OptimizerState& state,
                 bool with_state);
// A digest of the values of elements [begin, end) of replica 0.
uint64_t digest_values(const Model& model, uint64_t begin, uint64_t end);

}  // namespace dsgd

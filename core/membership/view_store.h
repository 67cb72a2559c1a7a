// Keeps what a head must know to go on with a running job after it was lost. Another head can then take up
// the job, while the workers train on.
#pragma once

#include <functional>

#include "transport/messages.h"

namespace dsgd {

class ViewStore {
 public:
  using Done = std::function<void(const Status&)>;
  virtual ~ViewStore() = default;
  // Returns false from the moment at which another head may have taken up the job. This head must then evict
  // no worker.
  virtual bool holds() const { return true; }
  // Replaces the record. One call at a time; `stored` is called on the head's loop, never from within: OK if
  // the record is durable.
  virtual void store(const transport::HeadRecord& record, Done stored) = 0;
  // Removes the record: the job is over. As store().
  virtual void remove(Done removed) = 0;
};

}  // namespace dsgd

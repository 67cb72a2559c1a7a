// Copies the buffers of collectives between a device and the host, in pieces, through pinned memory and
// queues of dsgd's own.
//
// A copy first waits for an event in a stream of the host's. Nothing is enqueued before that, since enqueued
// work cannot be taken back, and would hold up other queues: a copy that is given up while it waits never
// touches the buffer. Later at most two pieces are in flight. They end soon unless the device hangs.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "core/device/waiter.h"
#include "transport/loop.h"

namespace dsgd::device {

// Loop only.
class BufferCopier {
 public:
  struct Copy {
    std::shared_ptr<Device> device;
    std::shared_ptr<DeviceEvent> after;  // recorded in a stream of the host's
    void* to;
    const void* from;
    size_t nbytes;
    bool to_host;  // else to the device
    transport::Time deadline;
    std::string limit;  // the setting that the deadline comes from
  };
  // Called once. The buffers are no longer used, unless the device hangs: then the message says so.
  using Then = std::function<void(const Status&)>;

  // `timeout`: for pieces in flight after fail().
  BufferCopier(transport::Loop& loop, transport::Duration timeout);
  ~BufferCopier();
  BufferCopier(const BufferCopier&) = delete;

  void start(Copy copy, Then then);
  // Ends all copies, and later ones, with `cause`: within `timeout` those with pieces in flight, at once the
  // others.
  void fail(const Status& cause);
  bool idle() const { return copies_.empty(); }
  void when_idle(std::function<void()> then);
  // Ends all copies at once, and releases the loop.
  void close();

 private:
  struct Lane;
  struct Lanes;
  struct Active;
  struct Anchor;
  using ActivePtr = std::shared_ptr<Active>;

  Lanes& lanes_of(const std::shared_ptr<Device>& device);
  void supply(Lanes& lanes);
  void make_lane(Lanes& lanes);
  void put_back(const std::shared_ptr<Lane>& lane);
  void advance(const ActivePtr& active);
  bool next_piece(const ActivePtr& active, size_t slot);
  void time_out(const ActivePtr& active);
  void give_up(const ActivePtr& active, const Status& cause, transport::Duration timeout);
  void end(const ActivePtr& active, const Status& status);

  transport::Loop& loop_;
  const transport::Duration timeout_;
  Waiter waiter_;
  const std::shared_ptr<Anchor> anchor_;
  std::map<const Device*, std::unique_ptr<Lanes>> lanes_;
  std::list<ActivePtr> copies_;
  std::function<void()> idle_;
  Status failed_;
};

}  // namespace dsgd::device

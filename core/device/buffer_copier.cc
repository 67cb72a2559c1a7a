#include "core/device/buffer_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "transport/bounded_calls.h"
#include "transport/poster.h"

namespace dsgd::device {

namespace {

constexpr size_t kPiece = 1 << 20;
constexpr size_t kSlots = 2;  // one piece is on its way while the host copies the other
// Most lanes of a device that are not broken. Further copies wait for one.
constexpr size_t kLanes = 4;
// After the deadline, for pieces in flight: within the 100 ms that dsgd.h allows.
constexpr transport::Duration kLastPiece = std::chrono::milliseconds(50);

std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }
const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }

}  // namespace

// A queue with pinned memory for a few pieces. One copy uses it at a time.
struct BufferCopier::Lane {
  struct Slot {
    void* pinned = nullptr;
    std::unique_ptr<DeviceEvent> landed;
    enum { kIdle, kBusy, kLanded } state = kIdle;
    size_t offset = 0, nbytes = 0;  // of the piece
  };
  std::shared_ptr<void> pinned;
  std::unique_ptr<WorkQueue> queue;
  Slot slots[kSlots];
  Lanes* lanes = nullptr;
  int waits = 0;        // callbacks that the waiter still owes
  bool broken = false;  // the device has failed

  static Result<std::shared_ptr<Lane>> make(Device& device);
};

struct BufferCopier::Lanes {
  std::shared_ptr<Device> device;
  transport::BoundedCalls calls;  // make lanes, which may wait for the device
  std::vector<std::shared_ptr<Lane>> free, broken;
  std::deque<ActivePtr> waiting;
  size_t usable = 0, coming = 0;  // lanes that are not broken; that are being made
  bool supplying = false;
};

struct BufferCopier::Active {
  Copy copy;
  Then then;
  bool stream_passed = false;  // `copy.after` is done
  std::shared_ptr<Lane> lane;
  size_t next = 0;  // byte
  int busy = 0;     // slots
  bool advancing = false, ended = false;
  Status cause;  // of its failure, while pieces are in flight
  transport::TimerId timer = 0;
  const std::string& device() const { return copy.device->name(); }
};

// Outlives BufferCopier, since a lane may be finished after it.
struct BufferCopier::Anchor {
  transport::Poster poster;
  BufferCopier* copier;  // touched on the loop only
};

Result<std::shared_ptr<BufferCopier::Lane>> BufferCopier::Lane::make(Device& device) {
  auto lane = std::make_shared<Lane>();
  DSGD_RETURN_IF_ERROR(device.allocate_staging(kSlots * kPiece).into(&lane->pinned));
  DSGD_RETURN_IF_ERROR(device.new_queue().into(&lane->queue));
  for (size_t i = 0; i < kSlots; ++i) {
    lane->slots[i].pinned = bytes(lane->pinned.get()) + i * kPiece;
    DSGD_RETURN_IF_ERROR(device.new_event().into(&lane->slots[i].landed));
  }
  return lane;
}

BufferCopier::BufferCopier(transport::Loop& loop, transport::Duration timeout)
    : loop_(loop), timeout_(timeout), waiter_(loop), anchor_(new Anchor{transport::Poster(loop), this}) {}

BufferCopier::~BufferCopier() { close(); }

void BufferCopier::close() {
  if (!anchor_->copier) return;
  if (failed_.ok()) failed_ = Status(Code::kClosed, "the session was closed");
  while (!copies_.empty()) {
    const ActivePtr active = copies_.front();
    end(active, active->cause.ok() ? failed_ : active->cause);
  }
  anchor_->poster.close();
  anchor_->copier = nullptr;
  waiter_.close();
}

void BufferCopier::start(Copy copy, Then then) {
  if (!failed_.ok()) return then(failed_);
  const auto active = std::make_shared<Active>();
  active->copy = std::move(copy);
  active->then = std::move(then);
  copies_.push_back(active);
  active->timer = loop_.schedule(active->copy.deadline, [this, active] { time_out(active); });
  Lanes& lanes = lanes_of(active->copy.device);
  if (lanes.usable + lanes.coming == 0) make_lane(lanes);  // meanwhile
  waiter_.when_done(active->device(), *active->copy.after, transport::kNever,
                    [this, active, &lanes](const Status& status) {
                      if (active->ended) return;
                      if (!status.ok()) return end(active, status);
                      active->stream_passed = true;
                      lanes.waiting.push_back(active);
                      supply(lanes);
                    });
}

void BufferCopier::fail(const Status& cause) {
  if (!failed_.ok()) return;
  failed_ = cause;
  for (const ActivePtr& active : std::list<ActivePtr>(copies_))
    if (!active->ended) give_up(active, cause, timeout_);
}

void BufferCopier::when_idle(std::function<void()> then) {
  if (copies_.empty()) return then();
  idle_ = std::move(then);
}

// ---- lanes

BufferCopier::Lanes& BufferCopier::lanes_of(const std::shared_ptr<Device>& device) {
  auto& lanes = lanes_[device.get()];
  if (!lanes) {
    lanes = std::make_unique<Lanes>();
    lanes->device = device;
  }
  return *lanes;
}

// Gives free lanes to waiting copies. Then makes lanes for the others, up to kLanes.
void BufferCopier::supply(Lanes& lanes) {
  if (std::exchange(lanes.supplying, true)) return;
  while (!lanes.waiting.empty() && !lanes.free.empty()) {
    const ActivePtr active = lanes.waiting.front();
    lanes.waiting.pop_front();
    if (active->ended) continue;
    active->lane = std::move(lanes.free.back());
    lanes.free.pop_back();
    advance(active);
  }
  lanes.supplying = false;
  while (lanes.coming < lanes.waiting.size() && lanes.usable + lanes.coming < kLanes) make_lane(lanes);
}

// On a thread: an allocation of pinned memory may wait for all that the device does, and must not hold up the
// loop.
void BufferCopier::make_lane(Lanes& lanes) {
  ++lanes.coming;
  lanes.calls.run({}, [anchor = anchor_, key = lanes.device.get(), device = lanes.device] {
    const auto made = std::make_shared<Result<std::shared_ptr<Lane>>>(Lane::make(*device));
    anchor->poster.post([anchor, key, made] {
      if (!anchor->copier) return;
      Lanes& lanes = *anchor->copier->lanes_.at(key);
      --lanes.coming;
      if (made->ok()) {
        ++lanes.usable;
        made->value()->lanes = &lanes;
        lanes.free.push_back(made->value());
        return anchor->copier->supply(lanes);
      }
      while (!lanes.waiting.empty() && lanes.waiting.front()->ended) lanes.waiting.pop_front();
      if (lanes.waiting.empty()) return;  // none is needed now; the next copy tries again
      const ActivePtr active = lanes.waiting.front();
      lanes.waiting.pop_front();
      anchor->copier->end(active, made->status());
      if (!lanes.waiting.empty()) anchor->copier->supply(lanes);
    });
  });
}

void BufferCopier::put_back(const std::shared_ptr<Lane>& lane) {
  if (lane->waits > 0) return;  // until the device has done what is enqueued
  for (Lane::Slot& slot : lane->slots) slot.state = Lane::Slot::kIdle;
  Lanes& lanes = *lane->lanes;
  if (lane->broken) --lanes.usable;  // kept, since to release its memory may wait for the device
  (lane->broken ? lanes.broken : lanes.free).push_back(lane);
  supply(lanes);
}

// ---- copies

// Without recursion, since pieces may land within the calls below.
void BufferCopier::advance(const ActivePtr& active) {
  if (std::exchange(active->advancing, true)) return;
  for (bool again = true; again;) {
    again = false;
    for (size_t slot = 0; slot < kSlots; ++slot) again = next_piece(active, slot) || again;
  }
  active->advancing = false;
  if (active->busy > 0) return;
  end(active, active->cause);
}

// Ends a piece that has landed, and begins another. Returns whether that has landed already.
bool BufferCopier::next_piece(const ActivePtr& active, size_t index) {
  const std::shared_ptr<Lane> lane = active->lane;
  Lane::Slot& slot = lane->slots[index];
  Copy& copy = active->copy;
  if (slot.state == Lane::Slot::kBusy) return false;
  if (slot.state == Lane::Slot::kLanded) {
    slot.state = Lane::Slot::kIdle;
    --active->busy;
    if (copy.to_host && active->cause.ok())
      std::memcpy(bytes(copy.to) + slot.offset, slot.pinned, slot.nbytes);
  }
  if (!active->cause.ok() || active->next == copy.nbytes) return false;
  slot.offset = active->next;
  slot.nbytes = std::min(kPiece, copy.nbytes - active->next);
  if (!copy.to_host) std::memcpy(slot.pinned, bytes(copy.from) + slot.offset, slot.nbytes);
  Status status = copy.to_host ? lane->queue->copy(slot.pinned, bytes(copy.from) + slot.offset, slot.nbytes)
                               : lane->queue->copy(bytes(copy.to) + slot.offset, slot.pinned, slot.nbytes);
  if (!status.ok()) {
    active->cause = status;
    return false;
  }
  active->next += slot.nbytes;
  slot.state = Lane::Slot::kBusy;
  ++active->busy;
  ++lane->waits;
  waiter_.after(active->device(), *lane->queue, *slot.landed, transport::kNever,
                [this, active, lane, &slot](const Status& landed) {
                  --lane->waits;
                  slot.state = Lane::Slot::kLanded;
                  if (!landed.ok()) lane->broken = true;
                  if (active->ended) return put_back(lane);
                  if (!landed.ok() && active->cause.ok()) active->cause = landed;
                  advance(active);
                });
  return slot.state == Lane::Slot::kLanded;
}

void BufferCopier::time_out(const ActivePtr& active) {
  active->timer = 0;
  const Copy& late = active->copy;
  const std::string& device = active->device();
  std::string why;
  if (!active->stream_passed) {
    why = "the work that `stream` held on " + device + " at the call has not ended within " + late.limit +
          ", so the buffer was not " + (late.to_host ? "read" : "written");
  } else if (!active->lane) {
    why = "no pinned memory of " + device + " became free within " + late.limit +
          "; a stream of the host may be blocked";
  } else {
    why = device + " has not finished copying the buffer within " + late.limit;
  }
  give_up(active, Status(Code::kTimeout, why), kLastPiece);
}

void BufferCopier::give_up(const ActivePtr& active, const Status& cause, transport::Duration timeout) {
  if (active->busy == 0) return end(active, cause);
  if (active->cause.ok()) active->cause = cause;
  if (active->timer) loop_.cancel(active->timer);
  active->timer = loop_.schedule(loop_.now() + timeout, [this, active] {
    active->timer = 0;
    end(active,
        Status(active->cause.code(), active->cause.message() + "; " + active->device() +
                                         " hangs, and may still use the buffer until the session is freed")
            .with_rank(active->cause.rank(), active->cause.host()));
  });
}

void BufferCopier::end(const ActivePtr& active, const Status& status) {
  if (std::exchange(active->ended, true)) return;
  if (active->timer) loop_.cancel(std::exchange(active->timer, 0));
  copies_.remove(active);
  if (const auto lane = std::exchange(active->lane, nullptr)) put_back(lane);
  std::exchange(active->then, nullptr)(status);
  if (copies_.empty() && idle_) std::exchange(idle_, nullptr)();
}

}  // namespace dsgd::device

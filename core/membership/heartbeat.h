// Renews a worker's lease, on a network (loop, thread) of its own, so that neither bulk data nor a busy
// session delays it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/network.h"

namespace dsgd {

struct HeartbeatOptions {
  std::vector<std::string> addresses;  // of the heads; the first serves, and another one if that is lost
  transport::Hello hello;              // complete: `rank` is the worker's number
  int32_t own_rank = -1;
  std::string token;
  transport::Duration lease{};
  transport::Duration interval{};
  std::string head_name;  // for messages: "the head at ..."
  int32_t head_rank = -1;
  std::string head_host;
  std::string own_name, own_host;  // "rank 2 (worker ...)"
  // Addresses of the workers that are neither on the head's machine nor on this worker's.
  std::vector<std::vector<std::string>> peers;
};

// Callbacks of a heartbeat. They come on its network's loop.
struct HeartbeatEvents {
  // Called at most once, and ends the heartbeat: the head is lost, has refused, or has not answered in time.
  std::function<void(const Status&)> failed;
  // Set both if the head may come back. A head that is lost or does not answer then does not end the
  // heartbeat, which goes on dialling, also where a process refuses the connection. `head_lost` is called at
  // most once between two answers of the head. `head_answered` is called when a connection is answered for
  // the first time: another head may have answered.
  std::function<void(const Status&)> head_lost = nullptr;
  std::function<void()> head_answered = nullptr;
};

// Sends a renewal every half of `interval`. If the head does not answer one within half of `interval`, the
// heartbeat opens a new connection every eighth of `interval` (or lease/80, if that is more; at most 8), and
// sends renewals on the newest. Reason: after a cut, TCP may wait as long as the cut lasted before it sends
// again on an old connection. So a cut shorter than `lease` minus `interval` does not end the job, whenever
// it begins, if a handshake takes less than 3/8 of `interval`.
//
// After half a lease without an answer the heartbeat probes the peers, too. If none of them answers either,
// this worker is cut off.
//
// The lease is counted from the sending of the last renewal that was acknowledged: so it never outlasts the
// head's own count, which begins when the renewal arrives.
class Heartbeat : public std::enable_shared_from_this<Heartbeat> {
 public:
  Heartbeat(transport::Network& network, HeartbeatOptions options, HeartbeatEvents events);

  void start();  // any thread
  // The control connection is open again. Begins a new lease; calls `head_lost` again if the head does not
  // answer here within it. Any thread; the network must be alive.
  void begin_lease();
  // Sends `message` on the newest connection, and on each newer one, until the head acknowledges it. Then
  // calls `left` once, on the network's loop. Any thread; the network must be alive.
  void leave(const transport::Leave& message, std::function<void()> left);
  // When the head last answered that it stores the job's record; 0: it never has. Any thread.
  transport::Time stored_at() const { return stored_at_; }
  // Tells `done`, on the network's loop, whether this process was stopped until its lease was over: an error
  // that says so, or OK. Any thread; the network must be alive.
  void check_stop(std::function<void(const Status&)> done);
  // Any thread; the network must be alive. `stopped` (may be empty) is called on the network's loop; nothing
  // is called after it. The heartbeat closes its connection there.
  void stop(std::function<void()> stopped);

 private:
  void dial_heads();
  void dial_head(size_t head);
  void on_dialled(uint64_t number, size_t head, Result<std::unique_ptr<transport::ClientChannel>> result);
  void renew();
  void send_leave();
  void on_renewed(uint64_t number, transport::Time sent, const Result<transport::Message>& answer);
  void on_closed(uint64_t number, const Status& why);
  void forget_silence();
  void ask_peers();
  transport::Duration renewal_period() const;
  transport::Duration answer_limit() const;
  transport::Duration retry_period() const;
  void arm();
  void tick();
  void note_stall();
  bool was_stopped_past_lease();
  void ask_after_stop();
  bool is_over() const { return state_ == State::kOver; }
  bool head_may_return() const { return events_.head_lost != nullptr; }
  std::string last_error_note() const;
  Status stopped_error();
  void expire();
  void fail(Status why);
  void lose_head(const Status& why);
  Status head_error(const std::string& how, Code code = Code::kWorkerLost) const;
  void fail_as_lost_head(const std::string& how, Code code = Code::kWorkerLost);
  transport::Loop& loop() { return network_.loop(); }

  transport::Network& network_;
  const HeartbeatOptions options_;
  HeartbeatEvents events_;

  enum class State {
    kRenewing,
    kDraining,  // the lease is over; answers that have arrived are read before it fails
    kHeadLost,  // and it has not answered since
    kOver,      // failed or stopped
  };
  State state_ = State::kRenewing;
  std::atomic<transport::Time> stored_at_{};
  transport::Leave leave_;
  std::function<void()> left_;         // null: it does not leave, or the head knows
  uint64_t dials_ = 0, answered_ = 0;  // answered_: the last dial whose connection was answered
  // By number of the dial. Renewals are sent on the newest; the others are kept until it has been answered.
  // They are shared so that a posted task can keep a channel until its callbacks have returned.
  std::map<uint64_t, std::shared_ptr<transport::ClientChannel>> channels_;
  std::map<uint64_t, size_t> heads_;  // index of the address of each of them
  size_t other_dials_ = 0;            // of the other heads
  size_t head_ = 0;                   // of the head that has answered last
  bool peers_asked_ = false, peer_answered_ = false;
  transport::Time lease_start_{};  // when the last acknowledged renewal was sent
  transport::Time sent_{};         // the last renewal
  transport::Time next_renewal_ = transport::kNever, next_dial_{};
  transport::Time due_{};  // of the timer
  // How long this process was stopped since the last acknowledged renewal; 0: it was not.
  transport::Duration stalled_{};
  bool asks_after_stop_ = false;  // this process was stopped past its lease and waits for the head's answer
  transport::TimerId timer_ = 0;
  std::string last_error_;
};

}  // namespace dsgd

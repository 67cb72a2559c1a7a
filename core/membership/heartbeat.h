// Renews a worker's lease, on a network (loop, thread) of its own, so that neither bulk data nor a busy
// session delays it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/network.h"

namespace dsgd {

struct HeartbeatOptions {
  std::string address;     // of the head
  transport::Hello hello;  // complete, with rank, view and job nonce
  std::string token;
  transport::Duration lease{};
  transport::Duration interval{};
  std::string head_name;  // for messages: "the head at ..."
  int32_t head_rank = -1;
  std::string head_host;
  std::string own_name, own_host;               // "rank 2 (worker ...)"
  std::vector<std::vector<std::string>> peers;  // addresses of the workers that are not on the head's machine
};

// Sends a renewal every half of `interval`. If the head does not answer one within half of `interval`, the
// heartbeat opens a new connection every eighth of `interval`, and sends renewals on the newest. Reason:
// after a cut, TCP may wait as long as the cut lasted before it sends again on an old connection. So a cut
// shorter than `lease` minus `interval` does not end the job, whenever it begins, if a handshake takes less
// than 3/8 of `interval`.
//
// After half a lease without an answer the heartbeat probes the peers, too. If none of them answers either,
// this worker is cut off.
//
// The lease is counted from the sending of the last renewal that was acknowledged: so it never outlasts the
// head's own count, which begins when the renewal arrives.
class Heartbeat : public std::enable_shared_from_this<Heartbeat> {
 public:
  // `failed` is called at most once, on the network's loop: the head is lost, has refused, or has not
  // answered in time.
  Heartbeat(transport::Network& network, HeartbeatOptions options, std::function<void(const Status&)> failed);

  void start();  // any thread
  // Sends it on the newest connection and on each later one, until `left` is called, once, on the network's
  // loop: the head has taken it. Any thread; the network must be alive.
  void leave(const transport::Leave& message, std::function<void()> left);
  // Any thread; the network must be alive. `stopped` (may be empty) is called on the network's loop; nothing
  // is called after it. The heartbeat closes its connection there.
  void stop(std::function<void()> stopped);

 private:
  void dial();
  void on_dialled(uint64_t number, Result<std::unique_ptr<transport::ClientChannel>> result);
  void renew();
  void say_leave();
  void on_renewed(uint64_t number, transport::Time sent, const Result<transport::Message>& answer);
  void on_closed(uint64_t number, const Status& why);
  void destroy_later(std::shared_ptr<transport::ClientChannel> channel);
  void ask_peers();
  transport::Duration renewal_period() const;
  transport::Duration answer_limit() const;
  transport::Duration retry_period() const;
  void arm();
  void tick();
  void note_stall();
  bool was_stopped();
  Status stopped_error();
  void expire();
  void fail(Status why);
  void fail_as_lost_head(const std::string& how, Code code = Code::kWorkerLost);
  transport::Loop& loop() { return network_.loop(); }

  transport::Network& network_;
  const HeartbeatOptions options_;
  std::function<void(const Status&)> failed_;

  bool over_ = false;  // failed or stopped
  transport::Leave leave_;
  std::function<void()> left_;  // null: it does not leave, or the head knows
  bool drained_ = false;        // the lease is over; answers that have arrived are read before it fails
  uint64_t dials_ = 0;
  // By number of the dial. Renewals are sent on the newest; the others are kept until it has been answered.
  // They are shared so that a posted task can keep a channel until its callbacks have returned.
  std::map<uint64_t, std::shared_ptr<transport::ClientChannel>> channels_;
  bool peers_asked_ = false, peer_answered_ = false;
  transport::Time lease_start_{};  // when the last acknowledged renewal was sent
  transport::Time sent_{};         // the last renewal
  transport::Time next_renewal_ = transport::kNever, next_dial_{};
  transport::Time due_{};  // of the timer
  // How long this process was stopped since the last acknowledged renewal; 0: it was not.
  transport::Duration stalled_{};
  transport::TimerId timer_ = 0;
  std::string last_error_;
};

}  // namespace dsgd

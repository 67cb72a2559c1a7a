// Internals of the member. member.cc has the public calls, joining and leaving; member_control.cc has the
// control connection of a worker that has joined.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/while_alive.h"
#include "core/membership/head_reconnector.h"
#include "core/membership/heartbeat.h"
#include "core/membership/joiner.h"
#include "core/membership/member.h"
#include "core/membership/member_views.h"
#include "core/membership/text.h"
#include "transport/poster.h"

namespace dsgd {

struct Member::Impl : std::enable_shared_from_this<Member::Impl> {
  using ClientChannel = transport::ClientChannel;
  using JoinReply = transport::JoinReply;
  using Message = transport::Message;
  using WatchReply = transport::WatchReply;

  enum class Phase {
    kIdle,
    kJoining,  // dialling, waiting to dial again, or in the rendezvous
    kJoined,
    kHeadless,  // the worker that hosts the head has left in good order, and the head with it
    kBroken,
    kLeaving,
    kLeft,  // also: the join failed
  };

  Impl(transport::Network& n, transport::Network& h, MemberOptions o, std::shared_ptr<Log> g);

  transport::Network& network;
  transport::Loop& loop;
  transport::Network& heartbeat_network;
  MemberOptions options;
  const std::shared_ptr<Log> log;
  // From the heartbeat's thread back to the loop; closed when the member ends.
  const std::shared_ptr<transport::Poster> poster;

  Phase phase = Phase::kIdle;
  std::shared_ptr<Joiner> joiner;
  std::shared_ptr<ClientChannel> channel;  // control, once joined; shared only so that a task may hold it
  uint64_t channel_number = 0;             // counts the control channels, so that late answers are ignored
  // Addresses of the heads; the one that this worker joined is first, and numeric.
  std::vector<std::string> heads;
  std::shared_ptr<HeadReconnector> reconnector;  // null: the head is not lost
  bool reconnect_again = false;                  // once the reconnector has ended
  Status head_loss;                              // why it counts as lost, while there is a reconnector
  bool loss_logged = false;                      // the loss of the head was logged, so its return is, too
  transport::Time head_back_at{};                // when the head last came back
  std::shared_ptr<Heartbeat> heartbeat;
  MemberViews views;
  Status break_cause;
  // News of workers that left, with present ranks, which no callback has taken.
  std::vector<WatchReply> undelivered_left;
  std::function<void(Result<JoinReply>)> notify_joined;
  std::function<void(const Status&)> notify_broken;
  std::function<void(int32_t, uint64_t)> notify_left;
  std::function<void(const JoinReply&, const Status&)> notify_view;
  std::function<void()> notify_present;
  std::function<void()> notify_done;
  std::function<void(const Status&)> notify_refused;  // of enter()
  transport::TimerId leave_timer = 0;
  uint64_t received = 0;  // sequence of the last news
  // For a head that comes back: a report that no head has answered; and the peers in the present view with
  // which a connection has ended, by number, with why.
  std::optional<transport::Report> unanswered_report;
  std::map<int32_t, Status> cuts;
  transport::Leave leaving;
  transport::Time leave_until{};

  // Runs `f(impl)` from a task of the loop, if the member still exists.
  template <typename F>
  void later(F f) {
    loop.post(while_alive(weak_from_this(), std::move(f)));
  }

  // Returns a callback for the heartbeat's thread, which runs `f(impl, ...)` on the loop.
  template <typename F>
  auto on_loop(F f) {
    return [poster = poster, weak = weak_from_this(), f](const auto&... arguments) {
      poster->post([=] { while_alive(weak, f)(arguments...); });
    };
  }

  void drop_channel(bool flush);
  std::string head_name() const { return describe_head(options.head, views.present()); }
  bool over() const { return phase == Phase::kLeaving || phase == Phase::kLeft; }

  // ---- joining

  void start();
  void join_failed(const Status& why);
  void on_joined(Joiner::Joined joined);
  transport::Hello hello_of(transport::Role role) const;
  void start_heartbeat();
  void stop_heartbeat(std::function<void()> stopped);
  void abort_join(const Status& cause);

  // ---- news, and the loss of the head

  void watch(uint64_t sequence);
  void on_news(const WatchReply& news);
  void change_view(const WatchReply& news);
  void present_changed();
  void deliver_left();
  void heartbeat_failed(Status why);
  void head_lost(const std::string& how, Code code = Code::kWorkerLost);
  void on_head_left();

  // ---- a head that comes back

  bool head_may_return(const Status& why) const;
  void connection_lost(const Status& why);
  void head_silent(Status why);
  void head_answered();
  void start_reconnector(Status why);
  void on_reconnected(HeadReconnector::Channel back);
  void on_reconnect_failed(const Status& why);
  void call_report();
  transport::Time verdict_due(transport::Time reported) const;
  void stop_reconnector();
  void break_down(const Status& why);
  void deliver_broken();
  bool views_change() const;
  bool has_head() const { return phase == Phase::kJoined && (channel || reconnector) && !views.host_left(); }

  // ---- messages to the head

  void report(const Status& cause);
  bool report_cut(const std::string& peer_id, const Status& cause, bool silent);
  void enter(std::function<void(const Status&)> refused);
  void refuse(const Status& why);
  void refuse_entry();
  void call_enter();
  bool send_to_head(const Message& message);

  // ---- leaving

  void leave(const Status& cause, uint64_t view, uint64_t departure_call, std::function<void()> done);
  void send_leave(const Status& cause, uint64_t view, uint64_t departure_call, bool host);
  void call_leave();
  void left_job();
  void finish();
  void shut();
};

}  // namespace dsgd

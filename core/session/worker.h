// Assembles a worker: its networks, its listener, the head if this worker hosts it, membership and the
// engine. Only setup(), prepare() and retry_embed_head() may block, to read files, to bind and to resolve
// names, so the simulation runs the same code without threads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/log.h"
#include "core/config/config.h"
#include "core/membership/membership.h"
#include "core/session/engine.h"
#include "transport/network.h"
#include "transport/poster.h"

namespace dsgd {

class Worker {
 public:
  // `algorithm`: what the configuration names.
  Worker(transport::Environment& environment, const Config& config, AlgorithmChoice algorithm, Model& model,
         std::shared_ptr<Log> log);
  ~Worker();  // on no loop; ends the networks' threads
  // Called on the loop when the job goes on in another view, which view() then is.
  void on_view(std::function<void()> then) { on_view_ = std::move(then); }
  // Called on the loop when the session failed because memory ran out; the owner must end the remaining
  // operations.
  void on_exhausted(std::function<void(const Status&)> then) { on_exhausted_ = std::move(then); }

  // Makes the loop and the engine. Never blocks for long.
  Status setup();
  // Makes the other networks and the listeners; decides whether this worker hosts the head. May block to
  // resolve a name. Not on a loop.
  Status prepare();
  transport::Loop& loop() { return network_->loop(); }
  transport::Network& network() { return *network_; }
  metrics::Trace& trace() { return *trace_; }
  Engine& engine() { return *engine_; }
  const Mesh* mesh() const { return mesh_.get(); }  // null: one worker

  // Loop only. `joined` is called once. If the head cannot be reached after `try_hosting_at`, the join ends
  // with kUnreachable. `limit`: the setting that the deadline comes from, for messages.
  void join(transport::Time deadline, const std::string& limit, std::function<void(const Status&)> joined,
            transport::Time try_hosting_at = transport::kNever);
  // Loop only: ends a join under way with `cause`. The head tells the other workers.
  void abort_join(const Status& cause);
  // Loop only.
  std::string join_progress() const { return member_ ? member_->join_progress() : std::string(); }
  // Returns whether this worker may still host the head: another process had the head's address when this
  // worker tried to bind it, and may release it.
  bool may_host() const { return head_address_taken_ && !head_; }
  // Binds the head's address and hosts the head, if the address has been released meanwhile. Then call join()
  // again. Not on a loop.
  Status retry_embed_head();
  // Loop only: leaves in good order or because of `cause`; `done` within Member::host_patience at the latest.
  void leave(const Status& cause, std::function<void()> done);

  const transport::JoinReply& view() const { return view_; }
  bool hosts_head() const { return head_ != nullptr; }
  transport::Duration lease() const { return lease_; }

 private:
  Status check_head() const;  // an error if the configuration names no head that workers can reach
  std::string make_worker_id();
  MeshOptions mesh_options();
  void join_alone();
  MemberOptions member_options(transport::Time deadline, const std::string& limit,
                               transport::Time try_hosting_at) const;
  void connect_member_to_engine();
  void end_join(const Result<transport::JoinReply>& reply);
  bool may_embed_head() const;
  Status embed_head();
  void enter(const transport::JoinReply& view);
  void choose_spin();
  void keep_sending_progress();  // once per heartbeat_interval
  void send_progress();
  void watch_memory();
  void ran_out();
  bool listens_apart() const;
  Status listen_for_peers();
  Result<std::unique_ptr<transport::Listener>> listen_in_range(const std::string& address);
  std::string listen_address(std::string* why, Status* status) const;

  transport::Environment& environment_;
  const Config& config_;
  const AlgorithmChoice algorithm_;
  Model& model_;
  std::shared_ptr<Log> log_;
  bool solo_ = false;                     // one worker and no head: no network at all
  bool head_address_taken_ = false;       // by another process
  std::optional<transport::Time> began_;  // the first join
  transport::Duration lease_{}, heartbeat_interval_{};
  std::string worker_id_;
  std::function<void(const Status&)> joined_, on_exhausted_;
  std::function<void()> on_view_;
  transport::JoinReply view_;
  std::shared_ptr<transport::Poster> poster_;  // from the heartbeat's loop to the session's

  // ~Worker ends the listeners first, then what lives on the loop, then the networks.
  std::unique_ptr<metrics::Trace> trace_;
  std::unique_ptr<transport::Network> network_, heartbeat_network_, head_network_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Head> head_;
  std::unique_ptr<Member> member_;
  std::unique_ptr<Admission> head_admission_, admission_;
  // head_listener_ also accepts peers if listener_ is null.
  std::unique_ptr<transport::Listener> head_listener_, listener_;
};

}  // namespace dsgd

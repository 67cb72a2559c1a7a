#include "core/session/worker.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/address.h"
#include "core/base/describe.h"
#include "core/membership/probe.h"
#include "core/session/network_settings.h"

namespace dsgd {

using transport::Duration;
using transport::Network;

namespace {

// About the cost of a sleep and a wake-up. Where workers share processors, the wait for a processor is added.
constexpr Duration kSpin = std::chrono::microseconds(50), kSharingSpin = std::chrono::microseconds(200);

EngineOptions engine_options(const Config& config, const AlgorithmChoice& algorithm) {
  EngineOptions options;
  options.step_timeout = config.duration("step_timeout");
  options.stall_warning = config.duration("stall_warning");
  options.num_workers = static_cast<int32_t>(config.integer("num_workers"));
  options.bucket_bytes = config.size("bucket_size");
  options.servers = static_cast<int32_t>(config.integer("servers"));
  options.algorithm = algorithm;
  options.step.reproducible = config.flag("reproducible");
  options.fingerprint = config.text("fingerprint");
  options.step.gradient_norm = config.flag("gradient_norm") || config.text("loss_scale") != "off";
  options.step.absent_is_zero = config.text("absent") == "zero";
  const std::string nonfinite = config.text("nonfinite");
  options.step.nonfinite = static_cast<NonFiniteAction>(
      std::find(std::begin(kNonFiniteActions), std::end(kNonFiniteActions), nonfinite) -
      std::begin(kNonFiniteActions));
  for (const auto& [name, dtype] : kWireTypes) {
    if (config.text("wire") == name) options.step.wire = dtype;
  }
  options.step.early_update = config.flag("early_update");
  options.step.lease = config.duration("lease");
  options.views_change = config.views_change();
  options.internode_nccl = config.text("internode") == "nccl";
  options.nccl_library = config.text("nccl_library");
  options.checkpoint_dir = config.text("checkpoint_dir");
  options.checkpoint_interval = static_cast<uint64_t>(config.integer("checkpoint_interval"));
  options.checkpoint_keep = static_cast<uint64_t>(config.integer("checkpoint_keep"));
  options.library_version = library_version();
  return options;
}

}  // namespace

Worker::Worker(transport::Environment& environment, const Config& config, AlgorithmChoice algorithm,
               Model& model, std::shared_ptr<Log> log)
    : environment_(environment),
      config_(config),
      algorithm_(std::move(algorithm)),
      model_(model),
      log_(std::move(log)) {}

Worker::~Worker() {
  head_listener_.reset();
  listener_.reset();
  if (poster_) poster_->close();
  if (network_) {  // this worker's channels belong to the loop, and end on it
    transport::run_and_wait(network_->loop(), [this] {
      network_->loop().on_exhausted({});  // an operation that is still open now never ends
      member_.reset();
      if (engine_) engine_->detach_from_loop();
      if (mesh_) mesh_->drop_channels();
    });
  }
  // Destroys the networks before the objects that their loops call.
  head_network_.reset();
  heartbeat_network_.reset();
  network_.reset();
}

Status Worker::setup() {
  lease_ = config_.duration("lease");
  heartbeat_interval_ = config_.duration("heartbeat_interval");
  solo_ = config_.integer("num_workers") == 1 && config_.text("head").empty();
  if (!solo_) {
    DSGD_RETURN_IF_ERROR(check_head());
    DSGD_RETURN_IF_ERROR(use_tls(environment_, config_, log_));
  }
  DSGD_RETURN_IF_ERROR(environment_.new_network("dsgd-comm", config_.size("receive_memory")).into(&network_));
  network_->set_checksum(checksum_of(config_));
  trace_ = std::make_unique<metrics::Trace>(static_cast<size_t>(config_.integer("trace_spans")));
  EngineOptions options = engine_options(config_, algorithm_);
  options.step.trace = trace_.get();
  engine_ = std::make_unique<Engine>(network_->loop(), model_, std::move(options), log_);
  if (solo_) return {};

  worker_id_ = make_worker_id();
  poster_ = std::make_shared<transport::Poster>(network_->loop());
  mesh_ = std::make_unique<Mesh>(*network_, mesh_options(), *engine_, log_);
  engine_->use_mesh(mesh_.get());
  return {};
}

Status Worker::check_head() const {
  const std::string head = config_.text("head");
  if (head.empty()) {
    return Status(Code::kInvalidArgument,
                  "num_workers = " + std::to_string(config_.integer("num_workers")) +
                      " but `head` is not set; set it to the address of the head, for example "
                      "head = 10.0.0.1:7700, or start the workers with `dsgd run`")
        .with_parameter("head");
  }
  for (const std::string& one : split_addresses(head)) {
    if (!is_any_interface(one)) continue;
    return Status(
               Code::kInvalidArgument,
               "head = " + head + " names no machine: give the address at which all workers reach the head")
        .with_parameter("head");
  }
  return {};
}

std::string Worker::make_worker_id() {
  std::string id = config_.text("worker_id");
  if (!id.empty()) return id;
  static const char* kHex = "0123456789abcdef";
  id = environment_.host_name() + "-" + std::to_string(environment_.process_id()) + "-";
  for (uint64_t bits = network_->loop().random(), i = 0; i < 8; ++i, bits >>= 4) id += kHex[bits & 15];
  return id;
}

MeshOptions Worker::mesh_options() {
  MeshOptions mesh;
  mesh.hello.job = config_.text("job");
  mesh.hello.worker_id = worker_id_;
  mesh.hello.library_version = library_version();
  mesh.token = config_.text("token");
  mesh.max_workers = static_cast<int32_t>(config_.integer("max_workers"));
  mesh.receive_memory = config_.size("receive_memory");
  mesh.views_change = config_.views_change();
  mesh.lease = lease_;
  mesh.heartbeat_interval = heartbeat_interval_;
  mesh.trace = trace_.get();
  mesh.probe = [this, hello = mesh.hello, token = mesh.token](
                   const transport::MemberInfo& peer, transport::Time deadline,
                   std::function<void(const Status&)> done) mutable {
    hello.rank = view_.rank;
    hello.view = view_.view;
    heartbeat_network_->loop().post(
        [this, hello, token, peer, deadline, poster = poster_, done = std::move(done)] {
          probe(*heartbeat_network_, hello, token, peer.addresses, deadline,
                [poster, done](const Status& status) { poster->post([done, status] { done(status); }); });
        });
  };
  return mesh;
}

Status Worker::prepare() {
  if (solo_) return {};
  DSGD_RETURN_IF_ERROR(environment_.new_network("dsgd-heart", 1 << 20).into(&heartbeat_network_));
  heartbeat_network_->set_checksum(checksum_of(config_));

  if (may_embed_head()) DSGD_RETURN_IF_ERROR(embed_head());
  DSGD_RETURN_IF_ERROR(
      check_descriptors(environment_, config_.integer("max_workers"), head_ != nullptr, true));
  return head_ && !listens_apart() ? Status() : listen_for_peers();
}

// An allocation failure in a turn of a loop may have lost any event, so it ends the session.
void Worker::watch_memory() {
  network_->loop().on_exhausted([this] { ran_out(); });
  for (Network* network : {heartbeat_network_.get(), head_network_.get()}) {
    if (!network) continue;
    network->loop().post([this, loop = &network->loop()] {
      loop->on_exhausted([this] { network_->loop().post([this] { ran_out(); }); });
    });
  }
}

void Worker::ran_out() {
  if (auto joined = std::exchange(joined_, nullptr)) joined(engine_->exhausted());
  engine_->fail(engine_->exhausted(), true);
  if (on_exhausted_) on_exhausted_(engine_->exhausted());
}

void Worker::join(transport::Time deadline, const std::string& limit,
                  std::function<void(const Status&)> joined, transport::Time try_hosting_at) {
  joined_ = std::move(joined);
  watch_memory();
  if (solo_) return join_alone();
  if (!began_) began_ = network_->loop().now();
  member_ = std::make_unique<Member>(*network_, *heartbeat_network_,
                                     member_options(deadline, limit, try_hosting_at), log_);
  connect_member_to_engine();
  member_->join([this](const Result<transport::JoinReply>& reply) { end_join(reply); });
}

// One worker, and no head.
void Worker::join_alone() {
  view_.view = 1;
  view_.rank = 0;
  log_->set_rank(0);
  view_.members.resize(1);
  view_.members[0] = {
      0, "solo", environment_.host_name(), environment_.machine(), {}, environment_.process_id()};
  std::exchange(joined_, nullptr)({});
}

MemberOptions Worker::member_options(transport::Time deadline, const std::string& limit,
                                     transport::Time try_hosting_at) const {
  MemberOptions options;
  options.head = head_ ? head_listener_->address() : config_.text("head");
  options.hello.job = config_.text("job");
  options.token = config_.text("token");
  options.join.num_workers = static_cast<uint32_t>(config_.integer("num_workers"));
  options.join.min_workers = static_cast<uint32_t>(config_.integer("min_workers"));
  options.join.max_workers = static_cast<uint32_t>(config_.integer("max_workers"));
  options.join.rejoin_timeout = config_.duration("rejoin_timeout");
  options.join.straggler_timeout = config_.duration("straggler_timeout");
  options.join.hosts_head = head_ != nullptr;
  transport::MemberInfo& me = options.join.member;
  me.rank = static_cast<int32_t>(config_.integer("rank"));
  me.worker_id = worker_id_;
  me.host = environment_.host_name();
  me.machine = environment_.machine();
  me.pid = environment_.process_id();
  std::string address = listener_ ? listener_->address() : head_listener_->address();
  // Peers are given the interface that the head's own name leads to.
  if (!listener_ && is_any_interface(address))
    address = host_of(config_.text("head")) + ":" + port_of(address);
  me.addresses = {address};
  options.deadline = deadline;
  options.try_hosting_at = try_hosting_at;
  options.began = began_;
  options.limit = limit;
  options.rank_origin = config_.rank_origin();
  options.lease = lease_;
  options.heartbeat_interval = heartbeat_interval_;
  options.head_timeout = config_.duration("head_timeout");
  return options;
}

// Passes the member's events on to the engine, and the engine's to the member.
void Worker::connect_member_to_engine() {
  member_->on_broken([this](const Status& why) { engine_->fail(why, false); });
  member_->on_left([this](int32_t rank, uint64_t call) { engine_->note_departure(rank, call); });
  member_->on_view(
      [this](const transport::JoinReply& view, const Status& why) { engine_->change_view(view, why); });
  const auto take_view = [this](const transport::JoinReply& view) {
    enter(view);
    if (on_view_) on_view_();
  };
  member_->on_present_view([this, take_view] {
    take_view(member_->present_view());
    engine_->check_sources();
  });
  engine_->on_view(take_view);
  engine_->use_loss_report([this](int32_t unreachable, const Status& cause, bool silent) {
    if (!member_) return false;
    if (unreachable < 0) return member_->has_head();
    const auto& members = mesh_->members().view().members;
    return member_->report_cut(members[static_cast<size_t>(unreachable)].worker_id, cause, silent);
  });
  engine_->use_verdict_due(
      [this](transport::Time reported) { return member_ ? member_->verdict_due(reported) : reported; });
  engine_->on_state_held([this] { send_progress(); });
  engine_->after_failure([this](const Status& why) {
    if (member_) member_->report(why);
  });
}

void Worker::end_join(const Result<transport::JoinReply>& reply) {
  if (!joined_) return;  // there was no memory, and the caller has been told
  Status status = reply.status();
  if (reply.ok()) {
    enter(reply.value());
    if (view_.learner) {
      engine_->join_running_job(
          [this] { return member_->present_view(); },
          [this] { member_->enter([this](const Status& why) { engine_->fail_start(why); }); });
    } else {
      status = engine_->open(view_);
    }
  }
  if (status.ok()) {
    log_->info("rank " + std::to_string(view_.rank) + " of " + std::to_string(view_.members.size()) +
               ", view " + std::to_string(view_.view));
    keep_sending_progress();
  }
  std::exchange(joined_, nullptr)(status);
}

void Worker::enter(const transport::JoinReply& view) {
  view_ = view;
  log_->set_rank(view_.rank);
  choose_spin();
}

void Worker::send_progress() {
  if (member_ && member_->has_head()) member_->report_progress(engine_->progress());
}

// For `dsgd status`, and for the head to find stragglers.
void Worker::keep_sending_progress() {
  if (!member_) return;  // the session ends
  send_progress();
  network_->loop().schedule(network_->loop().now() + heartbeat_interval_,
                            [this] { keep_sending_progress(); });
}

void Worker::abort_join(const Status& cause) {
  if (member_) member_->abort_join(cause);
  if (auto joined = std::exchange(joined_, nullptr)) joined(cause);
}

// If local workers outnumber processors, a worker that spins may hold the processor that its peer needs, so
// it yields. Otherwise yielding would only make the scheduler move threads (see tests/bench/results).
void Worker::choose_spin() {
  const std::string& machine = view_.members[static_cast<size_t>(view_.rank)].machine;
  const auto local =
      std::count_if(view_.members.begin(), view_.members.end(),
                    [&](const transport::MemberInfo& member) { return member.machine == machine; });
  const bool sharing = local > environment_.processors();
  const Duration otherwise = sharing ? kSharingSpin : kSpin;
  network_->loop().set_spin({config_.text("spin").empty() ? otherwise : config_.duration("spin"), sharing});
}

void Worker::leave(const Status& given, std::function<void()> done) {
  Status cause = given;
  // The other workers wait for this one, so it must leave as lost.
  if (cause.ok() && engine_->recovering()) {
    const std::string view = "view " + std::to_string(view_.view);
    cause = Status(Code::kWorkerLost,
                   describe_member(view_.members[static_cast<size_t>(view_.rank)]) +
                       " closed its session while " +
                       (view_.paused ? "the job was paused in " + view
                                     : "the workers of " + view + " agreed on where they stand"))
                .with_rank(view_.rank);
  }
  const uint64_t departure_call = engine_->close(cause);
  if (!member_) return done();
  member_->leave(cause, view_.view, given.ok() ? departure_call : 0, std::move(done));
}

}  // namespace dsgd

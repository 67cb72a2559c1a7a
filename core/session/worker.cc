#include "core/session/worker.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "core/base/address.h"
#include "core/membership/probe.h"
#include "core/membership/text.h"

namespace dsgd {

using transport::Duration;
using transport::Network;

int64_t descriptors_of_job(int64_t num_workers, bool as_head, bool as_worker) {
  int64_t wanted = 0;
  if (as_head) wanted += 2 * num_workers;              // each member's own connection, and its heartbeat's
  if (as_worker) wanted += 2 * (num_workers - 1) + 2;  // peers; its own two to the head
  return wanted;
}

Status check_descriptors(transport::Environment& environment, int64_t num_workers, bool as_head,
                         bool as_worker) {
  const int64_t wanted = descriptors_of_job(num_workers, as_head, as_worker);
  const int64_t free = environment.free_descriptors();
  if (free >= wanted) return {};
  return Status(Code::kLimit,
                "a job of " + std::to_string(num_workers) + " workers needs up to " + std::to_string(wanted) +
                    " connections in this process, but only " + std::to_string(std::max<int64_t>(free, 0)) +
                    " more descriptors are available; raise the limit of open files (ulimit -n) by " +
                    std::to_string(wanted - free) + " or more")
      .with_parameter("num_workers");
}

namespace {

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

Status check_token(const std::string& token, const std::string& head) {
  if (!token.empty() || is_loopback(head)) return {};
  return Status(Code::kInvalidArgument,
                "`token` is not set: without one the head listens on the loopback interface only, not on " +
                    host_of(head) + "; set `token` to the same secret on the head and all workers")
      .with_parameter("token");
}

transport::Checksum checksum_of(const Config& config) {
  const std::string when = config.text("checksum");
  return when == "always"  ? transport::Checksum::kAlways
         : when == "never" ? transport::Checksum::kNever
                           : transport::Checksum::kAuto;
}

namespace {

// About what a sleep and a wake-up cost. Where workers share processors, the wait for one comes on top.
constexpr Duration kSpin = std::chrono::microseconds(50), kSharingSpin = std::chrono::microseconds(200);

EngineOptions engine_options(const Config& config, const AlgorithmChoice& algorithm) {
  EngineOptions options;
  options.step_timeout = config.duration("step_timeout");
  options.stall_warning = config.duration("stall_warning");
  options.bucket_bytes = config.size("bucket_size");
  options.servers = static_cast<int32_t>(config.integer("servers"));
  options.algorithm = algorithm;
  options.step.reproducible = config.flag("reproducible");
  options.fingerprint = config.text("fingerprint");
  options.step.gradient_norm = config.flag("gradient_norm") || config.text("loss_scale") != "off";
  options.step.absent_is_zero = config.text("absent") == "zero";
  options.step.lease = config.duration("lease");
  options.internode_nccl = config.text("internode") == "nccl";
  options.nccl_library = config.text("nccl_library");
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
  if (network_) {  // channels of ours are the loop's, and end there
    transport::run_and_wait(network_->loop(), [this] {
      network_->loop().on_exhausted({});  // what has not ended by now will not
      member_.reset();
      if (engine_) engine_->leave_loop();
      if (mesh_) mesh_->drop_channels();
    });
  }
  // The networks go next: afterwards no loop can call what is destroyed last.
  head_network_.reset();
  heartbeat_network_.reset();
  network_.reset();
}

Status Worker::setup() {
  lease_ = config_.duration("lease");
  heartbeat_interval_ = config_.duration("heartbeat_interval");
  const int64_t num_workers = config_.integer("num_workers");
  const std::string head = config_.text("head");
  solo_ = num_workers == 1 && head.empty();
  if (!solo_ && head.empty()) {
    return Status(Code::kInvalidArgument,
                  "num_workers = " + std::to_string(num_workers) +
                      " but `head` is not set; set it to the address of the head, for example "
                      "head = 10.0.0.1:7700, or start the workers with `dsgd run`")
        .with_parameter("head");
  }
  if (const std::string host = host_of(head); host == "0.0.0.0" || host == "[::]") {
    return Status(
               Code::kInvalidArgument,
               "head = " + head + " names no machine: give the address at which all workers reach the head")
        .with_parameter("head");
  }
  auto network = environment_.new_network("dsgd-comm", config_.size("receive_memory"));
  if (!network.ok()) return network.status();
  network_ = std::move(network).value();
  network_->set_checksum(checksum_of(config_));
  trace_ = std::make_unique<metrics::Trace>(static_cast<size_t>(config_.integer("trace_spans")));
  EngineOptions options = engine_options(config_, algorithm_);
  options.step.trace = trace_.get();
  engine_ = std::make_unique<Engine>(network_->loop(), model_, std::move(options), log_);
  if (solo_) return {};

  worker_id_ = config_.text("worker_id");
  if (worker_id_.empty()) {
    static const char* kHex = "0123456789abcdef";
    worker_id_ = environment_.host_name() + "-" + std::to_string(environment_.process_id()) + "-";
    for (uint64_t bits = network_->loop().random(), i = 0; i < 8; ++i, bits >>= 4)
      worker_id_ += kHex[bits & 15];
  }
  MeshOptions mesh;
  mesh.hello.job = config_.text("job");
  mesh.hello.worker_id = worker_id_;
  mesh.hello.library_version = library_version();
  mesh.token = config_.text("token");
  mesh.num_workers = static_cast<int32_t>(num_workers);
  mesh.receive_memory = config_.size("receive_memory");
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
  poster_ = std::make_shared<transport::Poster>(network_->loop());
  mesh_ = std::make_unique<Mesh>(*network_, mesh, *engine_, log_);
  engine_->use_mesh(mesh_.get());
  return {};
}

Status Worker::prepare() {
  if (solo_) return {};
  const int64_t num_workers = config_.integer("num_workers");
  auto heartbeat = environment_.new_network("dsgd-heart", 1 << 20);
  if (!heartbeat.ok()) return heartbeat.status();
  heartbeat_network_ = std::move(heartbeat).value();
  heartbeat_network_->set_checksum(checksum_of(config_));

  if (may_embed_head()) {
    Status status = embed_head();
    if (!status.ok()) return status;
  }
  Status status = check_descriptors(environment_, num_workers, head_ != nullptr, true);
  if (!status.ok()) return status;
  return head_ && !listens_apart() ? Status() : listen_for_peers();
}

// If ranks are given, only rank 0 may host the head: else workers on machines that resolve `head` differently
// could become two heads.
bool Worker::may_embed_head() const {
  return config_.text("embed_head") == "auto" && config_.integer("rank") <= 0;
}

// Peers use the head's listener unless the configuration names another address for them.
bool Worker::listens_apart() const {
  return !config_.text("listen").empty() || !config_.text("interface").empty() ||
         !config_.text("ports").empty();
}

// The process that can bind `head` becomes the head; the others connect to it. If the address is released
// before the head answers, a waiting worker tries to bind it again.
Status Worker::embed_head() {
  auto network = environment_.new_network("dsgd-head", 4 << 20);
  if (!network.ok()) return network.status();
  network.value()->set_checksum(checksum_of(config_));
  HeadOptions options{static_cast<uint32_t>(config_.integer("num_workers")), lease_, {}};
  auto head = std::make_unique<Head>(network.value()->loop(), options, log_);
  auto admission = std::make_unique<Admission>(
      network.value()->loop(), config_.text("job"), config_.text("token"),
      Admission::Route{network.value().get(), head.get()},
      listens_apart() ? Admission::Route{} : Admission::Route{network_.get(), &mesh_->peers}, log_);
  admission->on_refused([head = head.get()](const std::string& why) { head->note_refused(why); });
  const std::string address = config_.text("head");
  if (!listens_apart()) admission->accept_probes(heartbeat_network_.get());
  const int64_t reserved = descriptors_of_job(config_.integer("num_workers"), true, true);
  auto listener = network.value()->listen(address, admission.get(), {lease_, reserved});
  if (!listener.ok()) {
    const Code code = listener.status().code();
    network.value().reset();  // before the head, which its loop may call
    if (code == Code::kAddressInUse || code == Code::kUnreachable) {
      if (!taken_)
        log_->info("the head is not in this process: " +
                   (code == Code::kAddressInUse ? address + " is taken" : listener.status().message()));
      taken_ = code == Code::kAddressInUse;
      return {};
    }
    return listener.status();
  }
  if (Status status = check_token(config_.text("token"), address); !status.ok()) {
    listener.value().reset();
    network.value().reset();
    return status;
  }
  if (!listens_apart()) listener_.reset();  // its address has not been published
  head_network_ = std::move(network).value();
  head_ = std::move(head);
  head_admission_ = std::move(admission);
  head_listener_ = std::move(listener).value();
  log_->info("this process is the head, at " + head_listener_->address());
  return {};
}

Status Worker::setup_again() {
  Status status = embed_head();
  if (!status.ok() || !head_) return status;
  return check_descriptors(environment_, config_.integer("num_workers"), true, true);
}

std::string Worker::listen_address(std::string* why, Status* status) const {
  const std::string listen = config_.text("listen"), head = config_.text("head");
  if (!listen.empty()) {
    *why = "`listen` is set";
    return listen;
  }
  if (head.rfind("unix:", 0) == 0) {
    static std::atomic<uint32_t> counter{0};
    *why = "the head is a Unix socket";
    return head + "." + std::to_string(environment_.process_id()) + "." + std::to_string(counter++);
  }
  auto local = network_->local_address_for(head, config_.text("interface"), why);
  if (!local.ok()) {
    *status = local.status();
    return {};
  }
  const bool v6 = local.value().find(':') != std::string::npos && local.value().front() != '[';
  return (v6 ? "[" + local.value() + "]" : local.value()) + ":0";
}

Status Worker::listen_for_peers() {
  std::string why;
  Status status;
  const std::string address = listen_address(&why, &status);
  if (!status.ok()) return status;
  if (config_.text("listen").empty() && config_.text("token").empty() && !is_loopback(address)) {
    return Status(Code::kInvalidArgument,
                  "`token` is not set: without one, dsgd listens on the loopback interface only, "
                  "not on " +
                      host_of(address) + "; set `token` on all workers (or `listen`, to take the risk)")
        .with_parameter("token");
  }
  admission_ =
      std::make_unique<Admission>(heartbeat_network_->loop(), config_.text("job"), config_.text("token"),
                                  Admission::Route{}, Admission::Route{network_.get(), &mesh_->peers}, log_);
  admission_->accept_probes(heartbeat_network_.get());
  auto listener = listen_in_range(address);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  log_->info("peers reach this worker at " + listener_->address() + ": " + why);
  return {};
}

// Where any port will do, the first free one of `ports`. The heartbeat's thread accepts, which is never busy.
Result<std::unique_ptr<transport::Listener>> Worker::listen_in_range(const std::string& address) {
  const PortRange ports = config_.ports();
  const transport::ListenOptions options{lease_,
                                         descriptors_of_job(config_.integer("num_workers"), false, true)};
  if (ports.first == 0 || address.rfind("unix:", 0) == 0 || !address.ends_with(":0")) {
    return heartbeat_network_->listen(address, admission_.get(), options);
  }
  const std::string host = host_of(address) + ":";
  for (uint32_t port = ports.first; port <= ports.last; ++port) {
    auto listener = heartbeat_network_->listen(host + std::to_string(port), admission_.get(), options);
    if (listener.ok() || listener.status().code() != Code::kAddressInUse) return listener;
  }
  return Status(Code::kAddressInUse, "ports = '" + config_.text("ports") + "': all of them are in use on " +
                                         host_of(address) +
                                         "; give at least one port for each worker of a machine")
      .with_parameter("ports");
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
                  std::function<void(const Status&)> joined, transport::Time look_again) {
  joined_ = std::move(joined);
  watch_memory();
  if (solo_) {
    view_.view = 1;
    view_.rank = 0;
    log_->set_rank(0);
    view_.members.resize(1);
    view_.members[0] = {
        0, "solo", environment_.host_name(), environment_.machine(), {}, environment_.process_id()};
    return std::exchange(joined_, nullptr)({});
  }
  MemberOptions options;
  options.head = head_ ? head_listener_->address() : config_.text("head");
  options.hello.job = config_.text("job");
  options.token = config_.text("token");
  options.hello.worker_id = worker_id_;
  options.hello.library_version = library_version();
  options.join.num_workers = static_cast<uint32_t>(config_.integer("num_workers"));
  options.join.hosts_head = head_ != nullptr;
  transport::MemberInfo& me = options.join.member;
  me.rank = static_cast<int32_t>(config_.integer("rank"));
  me.worker_id = worker_id_;
  me.host = environment_.host_name();
  me.machine = environment_.machine();
  me.pid = environment_.process_id();
  std::string address = listener_ ? listener_->address() : head_listener_->address();
  if (!listener_) {  // bound to all interfaces: peers are given the one that the head's own name leads to
    const std::string host = host_of(address);
    if (host == "0.0.0.0" || host == "[::]")
      address = host_of(config_.text("head")) + address.substr(address.rfind(':'));
  }
  me.addresses = {address};
  options.deadline = deadline;
  options.look_again = look_again;
  if (!began_) began_ = network_->loop().now();
  options.began = began_;
  options.limit = limit;
  options.rank_origin = config_.rank_origin();
  options.lease = lease_;
  options.heartbeat_interval = heartbeat_interval_;
  member_ = std::make_unique<Member>(*network_, *heartbeat_network_, std::move(options), log_);
  member_->on_broken([this](const Status& why) { engine_->fail(why, false); });
  member_->on_left([this](int32_t rank, uint64_t call) { engine_->note_departure(rank, call); });
  engine_->on_loss([this](int32_t unreachable, const Status& cause) {
    if (!member_) return false;
    return unreachable >= 0 ? member_->report_cut(unreachable, cause) : member_->has_head();
  });
  engine_->on_broken([this](const Status& why) {
    if (member_) member_->report(why);
  });
  member_->join([this](Result<transport::JoinReply> reply) {
    if (!joined_) return;  // there was no memory, and the caller has been told
    Status status = reply.status();
    if (reply.ok()) {
      view_ = reply.value();
      log_->set_rank(view_.rank);
      choose_spin();
      status = engine_->open(view_);
    }
    if (status.ok()) {
      log_->info("rank " + std::to_string(view_.rank) + " of " + std::to_string(view_.members.size()) +
                 ", view " + std::to_string(view_.view));
    }
    std::exchange(joined_, nullptr)(status);
  });
}

void Worker::abort_join(const Status& cause) {
  if (member_) member_->abort_join(cause);
  if (auto joined = std::exchange(joined_, nullptr)) joined(cause);
}

// If local workers outnumber processors, the one that is waited for may need the processor of the one that
// waits. If not, yielding would only make the scheduler move threads (see tests/bench/README.md).
void Worker::choose_spin() {
  const std::string& machine = view_.members[static_cast<size_t>(view_.rank)].machine;
  const auto local =
      std::count_if(view_.members.begin(), view_.members.end(),
                    [&](const transport::MemberInfo& member) { return member.machine == machine; });
  const bool sharing = local > environment_.processors();
  const Duration otherwise = sharing ? kSharingSpin : kSpin;
  network_->loop().set_spin({config_.text("spin").empty() ? otherwise : config_.duration("spin"), sharing});
}

void Worker::leave(const Status& cause, std::function<void()> done) {
  const uint64_t departure_call = engine_->close(cause);
  if (!member_) return done();
  member_->leave(cause, departure_call, std::move(done));
}

}  // namespace dsgd

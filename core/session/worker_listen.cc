// The addresses at which a worker listens: that of the head, if it hosts one, and its own for its peers.

#include <atomic>
#include <utility>

#include "core/base/address.h"
#include "core/session/network_settings.h"
#include "core/session/worker.h"

namespace dsgd {

// If ranks are given, only rank 0 may host the head: else workers on machines that resolve `head` differently
// could become two heads.
bool Worker::may_embed_head() const {
  return config_.text("embed_head") == "auto" && config_.integer("rank") <= 0 &&
         split_addresses(config_.text("head")).size() == 1;
}

// Peers use the head's listener unless the configuration names another address for them.
bool Worker::listens_apart() const {
  return !config_.text("listen").empty() || !config_.text("interface").empty() ||
         !config_.text("ports").empty();
}

// The process that can bind `head` becomes the head; the others connect to it. If the address is released
// before the head answers, a waiting worker tries to bind it again.
Status Worker::embed_head() {
  std::unique_ptr<transport::Network> network;
  DSGD_RETURN_IF_ERROR(environment_.new_network("dsgd-head", 4 << 20).into(&network));
  network->set_checksum(checksum_of(config_));
  HeadOptions options = head_options(config_);
  options.init_timeout = {};  // this head ends with its worker
  auto head = std::make_unique<Head>(network->loop(), options, log_);
  auto admission = std::make_unique<Admission>(
      network->loop(), config_.text("job"), config_.text("token"),
      Admission::Route{network.get(), head.get()},
      listens_apart() ? Admission::Route{} : Admission::Route{network_.get(), &mesh_->peers}, log_);
  admission->on_refused([head = head.get()](const std::string& why) { head->note_refused(why); });
  const std::string address = config_.text("head");
  if (!listens_apart()) admission->accept_probes(heartbeat_network_.get());
  const int64_t reserved = descriptors_of_job(config_.integer("max_workers"), true, true);
  auto listener = network->listen(address, admission.get(), {lease_, reserved});
  if (!listener.ok()) {
    const Code code = listener.status().code();
    network.reset();  // before the head, which its loop may call
    if (code == Code::kAddressInUse || code == Code::kUnreachable) {
      if (!head_address_taken_)
        log_->info("the head is not in this process: " +
                   (code == Code::kAddressInUse ? address + " is taken" : listener.status().message()));
      head_address_taken_ = code == Code::kAddressInUse;
      return {};
    }
    return listener.status();
  }
  Status fit = check_token(config_, address);
  if (fit.ok() && !config_.text("head_state").empty()) {
    fit = Status(Code::kInvalidArgument,
                 "`head_state` is set, but this worker would host the head, which ends with it; start the "
                 "head with `dsgd head`, and set embed_head = never")
              .with_parameter("head_state");
  }
  if (!fit.ok()) {
    listener.value().reset();
    network.reset();
    return fit;
  }
  if (!listens_apart()) listener_.reset();  // its address has not been published
  head_network_ = std::move(network);
  head_ = std::move(head);
  head_admission_ = std::move(admission);
  head_listener_ = std::move(listener).value();
  log_->info("this process is the head, at " + head_listener_->address());
  return {};
}

Status Worker::retry_embed_head() {
  Status status = embed_head();
  if (!status.ok() || !head_) return status;
  return check_descriptors(environment_, config_.integer("max_workers"), true, true);
}

std::string Worker::listen_address(std::string* why, Status* status) const {
  const std::string listen = config_.text("listen");
  const std::vector<std::string> heads = split_addresses(config_.text("head"));
  if (!listen.empty()) {
    *why = "`listen` is set";
    return listen;
  }
  if (heads.front().rfind("unix:", 0) == 0) {
    static std::atomic<uint32_t> counter{0};
    *why = "the head is a Unix socket";
    return heads.front() + "." + std::to_string(environment_.process_id()) + "." + std::to_string(counter++);
  }
  auto local = network_->local_address_for(heads, config_.text("interface"), why);
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
  if (config_.text("listen").empty() && !is_protected(config_) && !is_loopback(address)) {
    return Status(Code::kInvalidArgument,
                  "`token` is not set: without one, or TLS, dsgd listens on the loopback interface only, "
                  "not on " +
                      host_of(address) +
                      "; set `token` on all workers, or `tls_cert`, `tls_key` and `tls_ca` (or `listen`, to "
                      "take the risk)")
        .with_parameter("token");
  }
  admission_ =
      std::make_unique<Admission>(heartbeat_network_->loop(), config_.text("job"), config_.text("token"),
                                  Admission::Route{}, Admission::Route{network_.get(), &mesh_->peers}, log_);
  admission_->accept_probes(heartbeat_network_.get());
  DSGD_RETURN_IF_ERROR(listen_in_range(address).into(&listener_));
  log_->info("peers reach this worker at " + listener_->address() + ": " + why);
  return {};
}

// Where any port will do, the first free one of `ports`. The heartbeat's thread accepts, which is never busy.
Result<std::unique_ptr<transport::Listener>> Worker::listen_in_range(const std::string& address) {
  const PortRange ports = config_.ports();
  const transport::ListenOptions options{lease_,
                                         descriptors_of_job(config_.integer("max_workers"), false, true)};
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

}  // namespace dsgd

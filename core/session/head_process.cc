#include "core/session/head_process.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "core/base/address.h"
#include "core/base/describe.h"
#include "core/base/views_change.h"
#include "core/membership/etcd_store.h"
#include "core/membership/head_file.h"
#include "core/membership/membership.h"
#include "core/session/network_settings.h"
#include "transport/authentication.h"

namespace dsgd {

struct HeadProcess::Impl {
  std::unique_ptr<transport::Environment> environment;
  std::unique_ptr<transport::Network> network;
  std::unique_ptr<HeadFile> file;   // null: none
  std::unique_ptr<EtcdStore> etcd;  // null: none
  std::unique_ptr<Head> head;
  std::unique_ptr<Admission> admission;
  std::unique_ptr<transport::Listener> listener;
  std::string address;
  std::atomic<bool> reached{false};  // etcd has answered, or the first contact has failed
  Status why_not_reached;
  std::atomic<bool> ended{false};
  Status result;

  // Opens the file `location`, and gives the record that it holds.
  Status open_file(const std::string& location, std::optional<transport::HeadRecord>* earlier);
  // `tls`: the files of the job, if it uses TLS.
  Status open_etcd(EtcdStore::Options options, std::optional<transport::TlsFiles> tls,
                   const std::shared_ptr<Log>& log);
  // Begins to stand by until etcd elects this head. Blocks until etcd has answered for the first time.
  Status begin_election(const HeadOptions& options, const std::string& location,
                        const std::shared_ptr<Log>& log);
  void end(const Status& status) {
    if (ended) return;
    result = status;
    ended = true;
    note_reached(status);
  }
  void note_reached(const Status& status) {
    if (reached) return;
    why_not_reached = status;
    reached = true;
  }
};

namespace {

// `sentence`: the difference and the first remedy.
Status not_this_job(const std::string& key, const std::string& sentence, const std::string& location) {
  return Status(Code::kMismatch,
                sentence + ", or remove the " + (is_etcd(location) ? "keys" : "file") + " to begin a new job")
      .with_parameter(key);
}

// The record of an earlier head must be of the job that this one is configured for.
Status check_record(const transport::HeadRecord& record, const HeadOptions& options,
                    const std::string& location) {
  struct Setting {
    const char* key;
    bool same;
    std::string kept, own;
  };
  const auto number = [](const char* key, uint32_t kept, uint32_t own) {
    return Setting{key, kept == own, std::to_string(kept), std::to_string(own)};
  };
  const auto time = [](const char* key, transport::Duration kept, transport::Duration own) {
    return Setting{key, kept == own, describe_duration(kept), describe_duration(own)};
  };
  const Setting settings[] = {
      {"job", record.job == options.job, record.job, options.job},
      {"token", record.token_digest == transport::token_digest(options.token, record.job_nonce), "", ""},
      number("num_workers", record.num_workers, options.num_workers),
      number("min_workers", record.min_workers, or_all(options.min_workers, options.num_workers)),
      number("max_workers", record.max_workers, or_all(options.max_workers, options.num_workers)),
      time("rejoin_timeout", record.rejoin_timeout, options.rejoin_timeout),
      time("straggler_timeout", record.straggler_timeout, options.straggler_timeout),
      time("lease", record.lease, options.lease),
  };
  for (const Setting& s : settings) {
    if (s.same) continue;
    const std::string key = s.key;
    const std::string record = "`head_state` = '" + location + "' is of a job with ";
    if (key == "token")  // whose value is not shown
      return not_this_job(
          key, record + "another `token` than this head has; start the head with the same token", location);
    return not_this_job(key,
                        record + key + " = " + s.kept + ", but this head has " + key + " = " + s.own +
                            "; start the head with the same " + key,
                        location);
  }
  return {};
}

// Workers dial the address at which the earlier head listened; with port 0, this head takes its port. Not
// called with etcd, where each head has an address of its own.
Status check_address(const std::string& earlier, const std::string& location, std::string* address) {
  if (earlier.empty()) return {};
  const std::string port = port_of(earlier);
  if (port == port_of(*address)) return {};
  if (port_of(*address) == "0" && port != earlier) {
    address->replace(address->size() - 1, 1, port);
    return {};
  }
  return not_this_job("head",
                      "`head_state` = '" + location + "' is of a job with a head at " + earlier +
                          ", but this head has the address " + *address + "; the workers dial " + earlier +
                          ", so start the head there",
                      location);
}

void warn_of_other_host(const std::string& earlier, const std::string& address, Log& log) {
  if (earlier.empty() || earlier == address) return;
  log.warning("the earlier head listened on " + earlier + ", this one listens on " + address +
              "; the workers find it only if the address that they dial (`head`) leads here");
}

// Others on the network can read the state of the job and change it, though they cannot join the job.
void warn_of_plain_etcd(const EtcdStore::Options& options, Log& log) {
  if (std::ranges::all_of(options.etcd.servers, is_loopback)) return;
  log.warning("the job uses TLS, but `head_state` = '" + options.text +
              "' sends its state to etcd in plain text; use etcds:// for TLS to etcd, too");
}

// Descriptors of a head beside its connections to workers.
int64_t other_descriptors(const std::string& location, const EtcdAddress& etcd) {
  const int64_t listener = 1;
  if (location.empty()) return listener;
  if (!is_etcd(location)) return listener + 2;  // the lock, and the file or the next one
  // The two ends of libcurl's wake-up pair, a look-up of a name, a second connection to a server for requests
  // at the same time, and a connection to each server. With TLS, the certificate or key file that libcurl
  // reads for a new connection.
  return listener + 4 + static_cast<int64_t>(etcd.servers.size()) + (etcd.tls ? 1 : 0);
}

Status standing_by(const std::string& other) {
  return Status(Code::kUnreachable, "the head at this address stands by for " + other);
}

}  // namespace

Status HeadProcess::Impl::open_file(const std::string& location,
                                    std::optional<transport::HeadRecord>* earlier) {
  std::shared_ptr<transport::Files> files;
  DSGD_RETURN_IF_ERROR(environment->new_files().into(&files));
  HeadFile::Opened opened;
  DSGD_RETURN_IF_ERROR(HeadFile::open(std::move(files), location, network->loop()).into(&opened));
  file = std::move(opened.file);
  *earlier = std::move(opened.record);
  return {};
}

Status HeadProcess::Impl::open_etcd(EtcdStore::Options options, std::optional<transport::TlsFiles> tls,
                                    const std::shared_ptr<Log>& log) {
  if (!options.etcd.tls) {
    if (tls) warn_of_plain_etcd(options, *log);
    tls.reset();
  }
  std::unique_ptr<transport::Http> http;
  DSGD_RETURN_IF_ERROR(environment->new_http(std::move(tls)).into(&http));
  etcd = std::make_unique<EtcdStore>(network->loop(), std::move(http), std::move(options), log);
  return {};
}

Status HeadProcess::Impl::begin_election(const HeadOptions& options, const std::string& location,
                                         const std::shared_ptr<Log>& log) {
  EtcdStore::Events events;
  events.reached = [this](const Status& status) { note_reached(status); };
  events.standing_by = [this, log](const std::string& other) {
    log->info("head: stands by for the head at " + other);
    admission->stand_by(standing_by("the one at " + other));
  };
  events.check = [options, location](const transport::HeadRecord& record) {
    return check_record(record, options, location);
  };
  events.elected = [this](std::optional<transport::HeadRecord> earlier) {
    if (earlier) {
      head->take_up(*earlier);
      head->set_address(address);
    }
    admission->stand_by({});
  };
  events.over = [this](const Status& status) {
    admission->stand_by(status.ok() ? standing_by("a job that has ended") : standing_by("another head"));
    if (status.ok()) return end({});
    head->stand_down(status);
  };
  // If the head listens on all interfaces, names it by its host.
  const std::string shown =
      is_any_interface(address) ? environment->host_name() + ":" + port_of(address) : address;
  network->loop().run([this, &events, &shown] { etcd->start(shown, std::move(events)); }, reached,
                      transport::kNever);
  return why_not_reached;
}

HeadProcess::HeadProcess() = default;

Result<std::unique_ptr<HeadProcess>> HeadProcess::start(const Config& config,
                                                        std::unique_ptr<transport::Environment> environment,
                                                        std::shared_ptr<Log> log) {
  DSGD_RETURN_IF_ERROR(config.validate(true));
  for (const std::string& warning : config.warnings(true)) log->warning(warning);
  std::string address = config.text("head");
  if (address.empty()) {
    return Status(Code::kInvalidArgument,
                  "`head` is not set; give the address to listen on, for example head = 127.0.0.1:7700 "
                  "(port 0: any)")
        .with_parameter("head");
  }
  if (split_addresses(address).size() > 1) {
    return Status(Code::kInvalidArgument, "head = " + address +
                                              " names several heads; give this one the address on which it "
                                              "listens (dsgd head --listen)")
        .with_parameter("head");
  }
  DSGD_RETURN_IF_ERROR(check_token(config, address));
  auto process = std::unique_ptr<HeadProcess>(new HeadProcess());
  process->impl_ = std::make_unique<Impl>();
  Impl& impl = *process->impl_;
  impl.environment = std::move(environment);
  DSGD_RETURN_IF_ERROR(use_tls(*impl.environment, config, log));
  DSGD_RETURN_IF_ERROR(impl.environment->new_network("dsgd-head", 4 << 20).into(&impl.network));
  impl.environment->limit_resolving(impl.network->loop().now() + config.duration("init_timeout"));
  impl.network->set_checksum(checksum_of(config));
  const std::string& location = config.text("head_state");
  const bool in_etcd = is_etcd(location);
  EtcdAddress etcd;
  if (in_etcd) DSGD_RETURN_IF_ERROR(parse_etcd(location).into(&etcd));
  const int64_t most = config.integer("max_workers");
  const int64_t others = other_descriptors(location, etcd);
  DSGD_RETURN_IF_ERROR(check_descriptors(*impl.environment, most, true, false, others));
  const HeadOptions options = head_options(config);
  std::optional<transport::HeadRecord> earlier;
  if (in_etcd) {
    DSGD_RETURN_IF_ERROR(
        impl.open_etcd({std::move(etcd), location, options.job, options.lease}, tls_files(config), log));
  } else if (!location.empty()) {
    DSGD_RETURN_IF_ERROR(impl.open_file(location, &earlier));
  }
  if (earlier) {
    DSGD_RETURN_IF_ERROR(check_record(*earlier, options, location));
    DSGD_RETURN_IF_ERROR(check_address(earlier->address, location, &address));
  }
  ViewStore* const store = in_etcd ? static_cast<ViewStore*>(impl.etcd.get()) : impl.file.get();
  impl.head = std::make_unique<Head>(impl.network->loop(), options, log, store);
  impl.head->on_end([&impl](const Status& status) { impl.end(status); });
  transport::Loop& loop = impl.network->loop();
  loop.post([&impl, &loop] {
    loop.on_exhausted(
        [&impl] { impl.end(Status(Code::kNoMemory, "no memory for what the head's communication needs")); });
  });
  impl.admission = std::make_unique<Admission>(loop, config.text("job"), config.text("token"),
                                               Admission::Route{impl.network.get(), impl.head.get()},
                                               Admission::Route{}, log);
  impl.admission->on_refused([head = impl.head.get()](const std::string& why) { head->note_refused(why); });
  if (earlier) transport::run_and_wait(loop, [&] { impl.head->take_up(*earlier); });
  if (in_etcd) impl.admission->stand_by(standing_by("another head"));
  DSGD_RETURN_IF_ERROR(impl.network
                           ->listen(address, impl.admission.get(),
                                    {options.lease, descriptors_of_job(most, true, false) + others})
                           .into(&impl.listener));
  impl.address = impl.listener->address();
  loop.post([&impl] { impl.head->set_address(impl.address); });
  log->info("the head listens on " + impl.address);
  if (earlier) warn_of_other_host(earlier->address, impl.address, *log);
  if (in_etcd) DSGD_RETURN_IF_ERROR(impl.begin_election(options, location, log));
  return process;
}

HeadProcess::~HeadProcess() {
  if (!impl_) return;
  if (!impl_->environment->alive().ok()) {
    (void)impl_.release();
    return;
  }
  impl_->listener.reset();
  if (impl_->file) impl_->file->close();
  if (impl_->etcd) impl_->etcd->close();
  impl_->network.reset();  // before the head, which its loop may call
}

const std::string& HeadProcess::address() const { return impl_->address; }
Status HeadProcess::alive() const { return impl_->environment->alive(); }

Status HeadProcess::wait(std::chrono::milliseconds timeout) {
  const transport::Time deadline =
      timeout.count() < 0 ? transport::kNever : impl_->network->loop().now() + timeout;
  if (!impl_->network->loop().wait(impl_->ended, deadline)) {
    return Status(Code::kWaitTimeout, "the job goes on after " + std::to_string(timeout.count()) + " ms");
  }
  return impl_->result;
}

}  // namespace dsgd

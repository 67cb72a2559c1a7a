// A head that runs outside the workers (dsgd_head_start).

#include "core/membership/membership.h"
#include "core/session/session.h"
#include "core/session/worker.h"

namespace dsgd {

struct HeadProcess::Impl {
  std::unique_ptr<transport::Environment> environment;
  std::unique_ptr<transport::Network> network;
  std::unique_ptr<Head> head;
  std::unique_ptr<Admission> admission;
  std::unique_ptr<transport::Listener> listener;
  std::string address;
  std::atomic<bool> ended{false};
  Status result;
};

HeadProcess::HeadProcess() = default;

Result<std::unique_ptr<HeadProcess>> HeadProcess::start(const Config& config,
                                                        std::unique_ptr<transport::Environment> environment,
                                                        std::shared_ptr<Log> log) {
  Status status = config.validate(true);
  if (!status.ok()) return status;
  for (const std::string& warning : config.warnings()) log->warning(warning);
  const std::string address = config.text("head");
  if (address.empty()) {
    return Status(Code::kInvalidArgument,
                  "`head` is not set; give the address to listen on, for example head = 127.0.0.1:7700 "
                  "(port 0: any)")
        .with_parameter("head");
  }
  if (status = check_token(config.text("token"), address); !status.ok()) return status;
  auto process = std::unique_ptr<HeadProcess>(new HeadProcess());
  process->impl_ = std::make_unique<Impl>();
  Impl& impl = *process->impl_;
  impl.environment = std::move(environment);
  auto network = impl.environment->new_network("dsgd-head", 4 << 20);
  if (!network.ok()) return network.status();
  impl.network = std::move(network).value();
  impl.environment->limit_resolving(impl.network->loop().now() + config.duration("init_timeout"));
  impl.network->set_checksum(checksum_of(config));
  const int64_t num_workers = config.integer("num_workers");
  status = check_descriptors(*impl.environment, num_workers, true, false);
  if (!status.ok()) return status;
  HeadOptions options{static_cast<uint32_t>(num_workers), config.duration("lease"),
                      config.duration("init_timeout")};
  impl.head = std::make_unique<Head>(impl.network->loop(), options, log);
  impl.head->on_end([&impl](const Status& status) {
    if (impl.ended) return;
    impl.result = status;
    impl.ended = true;
  });
  transport::Loop& loop = impl.network->loop();
  loop.post([&impl, &loop] {
    loop.on_exhausted([&impl] {
      if (impl.ended) return;
      impl.result = Status(Code::kNoMemory, "no memory for what the head's communication needs");
      impl.ended = true;
    });
  });
  impl.admission = std::make_unique<Admission>(loop, config.text("job"), config.text("token"),
                                               Admission::Route{impl.network.get(), impl.head.get()},
                                               Admission::Route{}, log);
  impl.admission->on_refused([head = impl.head.get()](const std::string& why) { head->note_refused(why); });
  auto listener = impl.network->listen(address, impl.admission.get(),
                                       {options.lease, descriptors_of_job(num_workers, true, false)});
  if (!listener.ok()) return listener.status();
  impl.listener = std::move(listener).value();
  impl.address = impl.listener->address();
  log->info("the head listens on " + impl.address);
  return process;
}

HeadProcess::~HeadProcess() {
  if (!impl_) return;
  if (!impl_->environment->alive().ok()) {
    (void)impl_.release();
    return;
  }
  impl_->listener.reset();
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

#include "tests/unit/membership/sim_job.h"

#include <gtest/gtest.h>

namespace dsgd {

using transport::Network;
using transport::ProcessId;
using transport::SimWorld;

namespace {

constexpr size_t kReceiveMemory = 1 << 20;

std::unique_ptr<Network> network_of(transport::Environment& environment, const std::string& name) {
  auto network = environment.new_network(name, kReceiveMemory);
  EXPECT_TRUE(network.ok()) << network.status().message();
  return std::move(network).value();
}

}  // namespace

SimHead::SimHead(SimWorld& world, ProcessId p, const std::string& host, uint32_t num_workers,
                 transport::Duration lease, const std::string& token)
    : process(p), environment_(world.environment(p)), network_(network_of(*environment_, "head")) {
  head_ = std::make_unique<Head>(network_->loop(), HeadOptions{num_workers, lease}, nullptr);
  head_->on_end([this](const Status& status) { ends.push_back(status); });
  admission_ =
      std::make_unique<Admission>(network_->loop(), "digits", token,
                                  Admission::Route{network_.get(), head_.get()}, Admission::Route{}, nullptr);
  auto listener = network_->listen(host + kHeadPort, admission_.get());
  EXPECT_TRUE(listener.ok()) << listener.status().message();
  if (listener.ok()) listener_ = std::move(listener).value();
}

SimHead::~SimHead() {
  listener_.reset();
  network_.reset();  // before the head, which its loop may call
}

SimWorker::SimWorker(SimWorld& world, ProcessId p, SimWorkerOptions o)
    : process(p),
      options(std::move(o)),
      world_(world),
      environment_(world.environment(p)),
      network_(network_of(*environment_, "session")),
      heartbeat_network_(network_of(*environment_, "heartbeat")) {
  host = environment_->host_name();
  pid = environment_->process_id();
  MemberOptions member;
  member.head = options.head_host + kHeadPort;
  member.hello.job = "digits";
  member.token = options.token;
  member.join.member.worker_id = options.id;
  member.join.member.rank = options.rank;
  member.join.member.host = host;
  member.join.member.machine = environment_->machine();
  member.join.member.pid = pid;
  member.join.num_workers = options.num_workers;
  member.join.hosts_head = options.hosts_head;
  member.deadline = world.now() + options.patience;
  member.lease = options.lease;
  member.heartbeat_interval = options.interval;
  auto log = std::make_shared<Log>(LogLevel::kWarning, [this](const LogRecord& record) {
    if (record.level == LogLevel::kWarning) warnings.push_back(record.message);
  });
  if (options.supervised)
    log->set_reporter([this](const WorkerReport& report) { reports.push_back(report); });
  member_ = std::make_unique<Member>(*network_, *heartbeat_network_, std::move(member), std::move(log));
  network_->loop().post([this] {
    member_->on_broken([this](const Status& why) {
      broken.push_back(why);
      broken_at = world_.now();
    });
    member_->on_left([this](int32_t rank, uint64_t) { left.push_back(rank); });
    member_->join([this](Result<transport::JoinReply> result) {
      ++calls_of_joined;
      joined = std::move(result);
      joined_at = world_.now();
    });
  });
}

SimWorker::~SimWorker() { destroy(); }

void SimWorker::leave(Status cause) {
  network_->loop().post([this, cause = std::move(cause)] {
    member_->leave(cause, ok() ? joined->value().view : 0, 0, [this] {
      ++calls_of_done;
      left_at = world_.now();
    });
  });
}

void SimWorker::report(Status cause) {
  network_->loop().post([this, cause = std::move(cause)] { member_->report(cause); });
}

void SimWorker::destroy() {
  if (!member_) return;
  if (!world_.alive(process)) world_.finish_killed(process);
  world_.resume(process);
  network_->loop().post([this] { member_.reset(); });
  EXPECT_TRUE(world_.run_until([this] { return member_ == nullptr; }, world_.now() + 1s));
  heartbeat_network_.reset();
  network_.reset();
}

}  // namespace dsgd

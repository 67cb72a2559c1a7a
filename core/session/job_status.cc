#include "core/session/job_status.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/address.h"
#include "core/base/log.h"
#include "core/base/retry.h"
#include "core/membership/admission.h"
#include "core/membership/text.h"
#include "core/session/network_settings.h"

namespace dsgd {
namespace {

using nlohmann::ordered_json;
using transport::Duration;
using transport::StatusReply;
using transport::WorkerStatus;

// One question to the head, on the loop of a network of its own. Of several heads, those that stand by refuse
// it, and so does a process of another job; so they are asked in turn. Each has its share of the time that is
// left.
struct HeadQuestion {
  const std::vector<std::string> heads;
  std::vector<Status> errors = std::vector<Status>(heads.size());  // of each that has not accepted
  size_t head = 0;                                                 // the one that is asked
  std::unique_ptr<transport::ClientChannel> channel = nullptr;
  Result<transport::Message> answer = Status(Code::kTimeout, "it does not answer");
  std::atomic<bool> answered{false};
  bool given_up = false;

  void ask(transport::Network& network, const transport::DialOptions& dial,
           const transport::Message& question) {
    const transport::Time now = network.loop().now();
    transport::DialOptions one = dial;
    one.deadline = now + (dial.deadline - now) / static_cast<int64_t>(heads.size() - head);
    network.dial(heads[head], std::move(one), [=, this, &network](auto dialled) {
      if (given_up) return;
      if (!dialled.ok()) {
        errors[head] = dialled.status();
        if (head + 1 == heads.size()) return end(failure());
        ++head;
        return ask(network, dial, question);
      }
      channel = std::move(dialled).value();
      channel->call(question, dial.deadline,
                    [this](Result<transport::Message> reply) { end(std::move(reply)); });
    });
  }
  // Prefers a refusal: its text is more specific than that of a head that does not run.
  Status failure() const {
    const auto refusal = std::find_if(errors.begin(), errors.end(), is_final);
    return error_of_all(heads, errors, refusal == errors.end() ? errors.back() : *refusal);
  }
  void end(Result<transport::Message> result) {
    answer = std::move(result);
    answered = true;
  }
};

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

ordered_json known(bool is_known, ordered_json value) {
  return is_known ? std::move(value) : ordered_json(nullptr);
}

ordered_json json_of(const WorkerStatus& worker) {
  static constexpr const char* kStates[] = {"waiting", "running", "joining", "left", "lost"};
  static constexpr const char* kActivities[] = {"computes", "busy", "waits"};
  const transport::Progress& progress = worker.progress;
  const bool present = worker.state < WorkerStatus::State::kLeft;
  const bool reports = worker.reported && present;
  const bool calls = reports && progress.call != 0;
  ordered_json json;
  json["rank"] = known(present && worker.member.rank >= 0, worker.member.rank);
  json["worker_id"] = worker.member.worker_id;
  json["host"] = worker.member.host;
  json["pid"] = worker.member.pid;
  json["state"] = kStates[static_cast<size_t>(worker.state)];
  json["silence"] = known(present, seconds(worker.silence));
  json["report_age"] = known(reports, seconds(worker.age));
  json["view"] = known(worker.reported, progress.present_view);
  json["steps"] = known(worker.reported, progress.steps);
  json["steps_per_second"] = known(reports, worker.steps_per_second);
  json["activity"] = known(reports, kActivities[static_cast<size_t>(progress.activity)]);
  json["operation"] = known(calls && !progress.operation.empty(), progress.operation);
  json["waiting"] = known(calls && !progress.waiting.empty(), progress.waiting);
  json["waits_for"] = known(reports, progress.waits_for);
  json["seconds"] = known(calls, seconds(progress.open));
  return json;
}

std::string json_of(const StatusReply& reply, const std::string& job, const std::string& head) {
  static constexpr const char* kStates[] = {"gathering", "running", "paused", "ending", "failed"};
  ordered_json json;
  json["job"] = job;
  json["head"] = head;
  json["state"] = kStates[static_cast<size_t>(reply.state)];
  json["view"] = known(reply.view > 0, reply.view);
  json["num_workers"] = reply.num_workers;
  json["min_workers"] = reply.min_workers;
  json["max_workers"] = reply.max_workers;
  json["wanted_workers"] = known(reply.wanted_workers > 0, reply.wanted_workers);
  json["scale_requests"] = reply.scale_requests;
  json["head_rank"] = known(reply.head_rank >= 0, reply.head_rank);
  json["error"] = known(!reply.cause.ok(), reply.cause.message());
  json["missing"] = reply.missing;
  json["refused"] = known(!reply.refused.empty(), reply.refused);
  json["workers"] = ordered_json::array();
  for (const WorkerStatus& worker : reply.workers) json["workers"].push_back(json_of(worker));
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

Status describe_failure(const std::string& head, const Status& why) {
  const std::string name = "the head at " + head;
  switch (why.code()) {
    case Code::kUnreachable:
      return Status(why.code(), "no head answers: " + why.message() +
                                    "; check that the job runs, and that `head` is the address of its head");
    case Code::kIo:
      return Status(Code::kMismatch, name + " does not know this request (" + why.message() +
                                         "); install the same version of dsgd everywhere");
    case Code::kTimeout:
      return Status(why.code(), name + " did not answer in time: " + why.message());
    default:
      return why;
  }
}

struct HeadAnswer {
  std::string head;  // its address
  transport::Message message;
};

// Sends `question` to the head that the configuration names; returns its answer.
Result<HeadAnswer> ask_head(const Config& config, transport::Environment& environment, Duration timeout,
                            const std::string& program, transport::Message question) {
  DSGD_RETURN_IF_ERROR(config.validate_client());
  const std::string head = config.text("head");
  if (head.empty()) {
    return Status(
               Code::kInvalidArgument,
               "`head` is not set; set it to the address of the job's head, for example head = 10.0.0.1:7700")
        .with_parameter("head");
  }
  DSGD_RETURN_IF_ERROR(use_tls(environment, config, std::make_shared<Log>()));
  std::unique_ptr<transport::Network> network;
  DSGD_RETURN_IF_ERROR(environment.new_network("dsgd-status", 1 << 20).into(&network));
  network->set_checksum(checksum_of(config));
  transport::Loop& loop = network->loop();

  transport::DialOptions dial;
  dial.hello.job = config.text("job");
  dial.hello.worker_id =
      program + " on " + environment.host_name() + ", pid " + std::to_string(environment.process_id());
  dial.hello.library_version = library_version();
  dial.token = config.text("token");
  dial.deadline = loop.now() + timeout;
  HeadQuestion asked{split_addresses(head)};
  const transport::Time deadline = dial.deadline + std::chrono::milliseconds(100);
  const bool answered =
      loop.run([&, dial] { asked.ask(*network, dial, question); }, asked.answered, deadline);
  Result<transport::Message> answer = answered ? asked.answer : Status(Code::kTimeout, "it does not answer");
  transport::run_and_wait(loop, [&] {
    asked.given_up = true;
    asked.channel.reset();
  });
  network.reset();
  if (!answer.ok()) return describe_failure(head, answer.status());
  return HeadAnswer{asked.heads[asked.head], std::move(answer).value()};
}

Status invalid_answer(const std::string& head) {
  return {Code::kMismatch,
          "the head at " + head + " sent an invalid answer; another program may listen there"};
}

}  // namespace

Result<std::string> job_status(const Config& config, transport::Environment& environment, Duration timeout) {
  const auto answer = ask_head(config, environment, timeout, "dsgd status", transport::StatusRequest{});
  if (!answer.ok()) return answer.status();
  const auto* reply = std::get_if<StatusReply>(&answer.value().message);
  if (!reply) return invalid_answer(answer.value().head);
  return json_of(*reply, config.text("job"), answer.value().head);
}

Status scale_job(const Config& config, transport::Environment& environment, Duration timeout,
                 uint32_t workers) {
  const auto answer = ask_head(config, environment, timeout, "dsgd scale", transport::ScaleRequest{workers});
  if (!answer.ok()) return answer.status();
  const bool taken = std::holds_alternative<transport::Empty>(answer.value().message);
  return taken ? Status() : invalid_answer(answer.value().head);
}

}  // namespace dsgd

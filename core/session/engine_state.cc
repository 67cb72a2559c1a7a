#include "core/session/engine_state.h"

#include <algorithm>

#include "core/base/views_change.h"
#include "core/base/while_alive.h"
#include "core/session/saved_parts.h"
#include "core/session/signature.h"
#include "transport/schema/codec.h"

namespace dsgd {
namespace {

// Bytes of a bucket, where the user gives none. Each bucket that devices reduce costs the host about as much
// time, whatever its size, so theirs are larger.
constexpr size_t kBucket = 4 << 20, kBucketOfTeams = 32 << 20, kBucketOfOneGpu = 64 << 20;

}  // namespace

EngineState::EngineState(transport::Loop& of_session, Model& of_worker, EngineOptions engine_options,
                         std::shared_ptr<Log> of_log)
    : loop(of_session),
      model(of_worker),
      options(std::move(engine_options)),
      log(std::move(of_log)),
      events(loop, log),
      step(loop, model, options.step, [this](const Status& why) { fail(why, true); }),
      stalls(loop, options.stall_warning, log),
      calls(loop, options.step_timeout, stalls, [this](uint64_t call) { return wait_report(call); }),
      staging_queue(loop, step),
      giver(model, step, staging_queue, [this](const Status& why) {
        if (failure.ok()) fail(why, true);
      }) {}

std::string EngineState::signature(const std::string& strategy, bool with_rate) const {
  return describe_settings(options, model, strategy, with_rate, mesh ? mesh->peers.chunk_bytes() : 0);
}

// Returns why the strategy cannot run this job, else OK.
Status EngineState::check_strategy(const StrategySpec& strategy) const {
  const bool needs_copies = model.has_state() || !strategy.traits().takes_copies;
  if (options.views_change && strategy.traits().owner_updates() && strategy.copies < 2 && needs_copies) {
    return Status(
               Code::kUnsupported,
               "strategy '" + strategy.name() +
                   "' keeps one copy of the optimizer's state, so the job could not go on in another view (" +
                   kViewsChangeWhen + "); " +
                   (strategy.traits().takes_copies ? "set copies=2 or more, use " : "use ") +
                   "allreduce or simple, or leave all three unset")
        .with_parameter("min_workers");
  }
  if (options.servers > 0 && strategy.copies > options.servers) {
    return Status(Code::kInvalidArgument,
                  "strategy '" + strategy.describe() + "' needs " + std::to_string(strategy.copies) +
                      " servers, and the key servers is " + std::to_string(options.servers) +
                      "; raise servers or lower copies")
        .with_parameter("copies");
  }
  if (options.views_change && model.optimizer->is_none()) {
    return Status(Code::kUnsupported,
                  "optimizer 'none' leaves the update to the host, so a worker could not copy it in another "
                  "view (" +
                      std::string(kViewsChangeWhen) + "); use another optimizer, or leave all three unset")
        .with_parameter("min_workers");
  }
  if (started && strategy.traits().takes_algorithm && strategy.algorithm->nccl == NcclUse::kRequired &&
      !step.has_teams()) {
    return Status(Code::kUnsupported,
                  "algorithm = nccl cannot be used: no GPU team was formed at start; start with "
                  "algorithm=nccl to see why, or use auto")
        .with_parameter("algorithm");
  }
  return {};
}

Result<Plan> EngineState::plan_of(const StrategySpec& strategy, bool frozen_too) const {
  DSGD_RETURN_IF_ERROR(check_strategy(strategy));
  std::vector<PlanParameter> planned;
  for (size_t p = 0; p < model.parameters.size(); ++p) {
    const Parameter& parameter = *model.parameters[p];
    planned.push_back({parameter.dtype, parameter.count,
                       parameter.trained && (frozen_too || !model.settings[p].frozen), parameter.name});
  }
  PlanOptions plan_options{size(), options.servers > 0 ? options.servers : size(), options.bucket_bytes};
  const auto& replicas = model.replicas;
  const bool on_one_gpu = std::all_of(replicas.begin(), replicas.end(), [&](const auto& replica) {
    return !replica->device->is_host() && replica->device == replicas.front()->device;
  });
  if (plan_options.bucket_bytes == 0) {
    plan_options.bucket_bytes = step.reduces_by_teams(strategy) ? kBucketOfTeams
                                : !mesh && on_one_gpu           ? kBucketOfOneGpu
                                                                : kBucket;
  }
  if (options.step.reproducible) plan_options.trailer = kExactTrailer;
  if (mesh) {
    for (const auto& member : mesh->members().view().members) plan_options.numbers.push_back(member.number);
  }
  auto plan = make_plan(planned, strategy, plan_options);
  if (plan.ok() && options.views_change && strategy.traits().owner_updates()) {
    const size_t ranges = key_ranges(plan.value()).size();
    if (ranges > transport::kMaxHeldRanges) {
      return Status(Code::kLimit, "strategy '" + strategy.name() + "' cuts this model into " +
                                      std::to_string(ranges) + " key ranges; at most " +
                                      std::to_string(transport::kMaxHeldRanges) +
                                      " are possible in a job that goes on in another view; use a larger "
                                      "bucket_size (up to 256K), or allreduce");
    }
  }
  if (!plan.ok() || size() == 1 || !strategy.algorithm->registered()) return plan;
  for (Bucket& bucket : plan.value().buckets) {  // compute now, so that the first step does not
    auto schedule = strategy.algorithm->schedules->schedule(rank(), size(), bucket.elements);
    if (!schedule.ok()) return schedule.status();
    bucket.schedule = schedule.value()->digest;
  }
  return plan;
}

Status EngineState::apply_plan(Plan plan) {
  Status status = step.set_plan(std::move(plan), strategy_version);
  if (!status.ok()) fail(status, true);
  return status;
}

EngineState::Done EngineState::begin_change(Done done) {
  ++changes;
  return [this, done = std::move(done)](const Status& status) {
    --changes;
    done(status);
  };
}

void EngineState::prepare(PreparedChange change) {
  if (options.views_change && mesh && !prepared) prepared = std::move(change);
}

bool EngineState::defer_to_reports(const Call& call) {
  if (!has_prepared(call)) return false;
  if (phase != ViewPhase::kEntering) {
    prepared.reset();
    return false;
  }
  loop.schedule(call.deadline, if_alive(alive, [this, call] {
                  if (!has_prepared(call)) return;
                  prepared->end(Status(Code::kTimeout,
                                       "the workers of the job were changing, and have not agreed within " +
                                           call.limit + " on this call; it may still succeed"));
                }));
  return true;
}

void EngineState::reject_next_call(uint32_t channel, const std::string& name, const Status& why) {
  if (!mesh || !failure.ok()) return;
  Done end = [](const Status&) {};
  CallOptions of_channel;
  of_channel.channel = channel;
  const std::shared_ptr<Call> call = calls.begin(&end, of_channel);
  const Status told = Status(Code::kMismatch, name + ": " + mesh->members().name(rank()) +
                                                  " rejected this call: " + why.message() +
                                                  "; correct it there and repeat the call on all workers")
                          .with_rank(rank(), mesh->members().host_of(rank()))
                          .with_operation(name)
                          .with_parameter(why.parameter());
  mesh->operations.announce_failure(operation_number(call->number, 0), told);
  end(told);
}

Status EngineState::follow_default_streams() {
  for (DeviceContext& context : step.contexts()) DSGD_RETURN_IF_ERROR(context.follow_default_stream());
  return {};
}

Result<HostValues> EngineState::host_values(bool filled, bool trained) {
  // After the start the host may read its buffers, change them, or bind others.
  const bool in_place = step.contexts().back().is_host() && !started;
  device::Device& staging = *step.contexts().back().device;
  DSGD_RETURN_IF_ERROR(follow_default_streams());
  HostValues values;
  for (size_t p = 0; p < model.parameters.size(); ++p) {
    std::byte* value = model.bindings[0][p].value;
    const size_t nbytes = model.parameters[p]->nbytes();
    values.emplace_back();
    if (model.parameters[p]->trained && !trained) continue;
    if (in_place) {
      values.back() = {std::shared_ptr<void>(), value};  // the host's own
      continue;
    }
    DSGD_RETURN_IF_ERROR(staging.allocate_staging(nbytes).into(&values.back()));
    if (!filled || nbytes == 0) continue;
    DSGD_RETURN_IF_ERROR(step.context_of(0).queue->copy(values.back().get(), value, nbytes));
  }
  return values;
}

Status EngineState::spread_values(const HostValues& values) {
  for (DeviceContext& context : step.contexts()) {
    for (uint32_t r : context.replicas) {
      for (size_t p = 0; p < model.parameters.size(); ++p) {
        if (!values[p]) continue;
        DSGD_RETURN_IF_ERROR(
            context.queue->copy(model.bindings[r][p].value, values[p].get(), model.parameters[p]->nbytes()));
      }
    }
  }
  return {};
}

bool EngineState::has_joined_later(int32_t rank) const {
  const auto& members = mesh->members().view().members;
  const size_t index = static_cast<size_t>(rank);  // a peer may have named any
  return index < members.size() && members[index].number >= options.num_workers &&
         members[0].number < options.num_workers;
}

void EngineState::fail_learner(const std::string& difference) {
  fail(Status(Code::kMismatch,
              "dsgd_start: this worker cannot join the running job: " + difference +
                  "; register the same parameters in the same order and set the same options as the others, "
                  "and the strategy that they have now")
           .with_rank(rank(), mesh->members().host_of(rank()))
           .with_operation("dsgd_start"),
       false);
}

Status EngineState::other_version(int32_t rank, const Status& why) const {
  return Status(Code::kMismatch, "dsgd_start: rank " + std::to_string(rank) +
                                     " runs another version of dsgd (" + why.message() +
                                     "); install the same version on all workers")
      .with_rank(rank)
      .with_operation("dsgd_start");
}

}  // namespace dsgd

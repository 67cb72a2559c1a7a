// Start and change of strategy: the moments at which all workers compare what they are and agree on a plan.

#include <algorithm>
#include <cstring>
#include <map>

#include "core/base/join.h"
#include "core/base/text.h"
#include "core/collectives/direct.h"
#include "core/session/engine.h"
#include "core/session/saved_parts.h"
#include "core/session/signature.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::BulkHeader;

namespace {

// Bytes of a bucket, where the user gives none. Each bucket that devices reduce costs the host about as much
// time, whatever its size, so theirs are larger.
constexpr size_t kBucket = 4 << 20, kBucketOfTeams = 32 << 20, kBucketOfOneGpu = 64 << 20;

}  // namespace

std::string Engine::signature(const std::string& strategy, bool with_rate) const {
  return describe_settings(options_, model_, strategy, with_rate, mesh_ ? mesh_->peers.chunk_bytes() : 0);
}

// Once the steps have ended, the call takes no number on any worker.
void Engine::refuse(const std::string& name, const Status& why) {
  if (torn_.ok()) refuse_next_call(0, name, why);
}

void Engine::refuse_next_call(uint32_t channel, const std::string& name, const Status& why) {
  if (!mesh_ || !failure_.ok()) return;
  Done end = [](const Status&) {};
  CallOptions options;
  options.channel = channel;
  const std::shared_ptr<Call> call = calls_.begin(&end, options);
  const Status told = Status(Code::kMismatch, name + ": " + mesh_->members().name(rank()) +
                                                  " rejected this call: " + why.message() +
                                                  "; correct it there and repeat the call on all workers")
                          .with_rank(rank(), mesh_->members().host_of(rank()))
                          .with_operation(name)
                          .with_parameter(why.parameter());
  mesh_->operations.refuse(operation_number(call->number, 0), told);
  end(told);
}

void Engine::start(const StrategySpec& strategy, Done done, const CallOptions& options) {
  if (!failure_.ok()) return done(failure_);
  const uint64_t watch = stalls_.begin([this] { return wait_report(starting_ ? starting_->call : 0); });
  starting_ = Starting{strategy, options, [this, watch, done = std::move(done)](const Status& status) {
                         stalls_.end(watch);
                         done(status);
                       }};
  if (enter_) return learn();
  if (!recovering_) begin_start();
}

// Runs again in each view that begins before the start has ended.
void Engine::begin_start() {
  const StrategySpec strategy = starting_->strategy;
  const uint64_t number = starting_->call = calls_.take();
  const auto call = calls_.make(number, starting_->options);
  const Done done = [this, number, entered = view()](const Status& status) {
    if (entering_ || entered != view() || !starting_) return;
    if (mesh_) mesh_->operations.end_call(number, status);
    std::exchange(starting_, std::nullopt)->done(status);
  };
  auto planned = plan_of(strategy);
  const std::string mine = signature(describe_plan(planned, strategy), true);
  // Reported after the exchange, since only this worker's plug-in may fail.
  const Status unusable = planned.status();
  if (!mesh_ && !unusable.ok()) return done(unusable);
  const auto plan = std::make_shared<const Plan>(unusable.ok() ? std::move(planned).value() : Plan());
  const uint32_t replicas = static_cast<uint32_t>(model_.replicas.size());
  const uint32_t own_gpus = static_cast<uint32_t>(gpus().size());
  const auto agreed = [this, call, plan, done](const std::vector<uint32_t>& gpus_of) {
    form_teams(call, plan->strategy, gpus_of, [this, call, plan, done](const Status& status) {
      if (!status.ok()) return done(status);
      if (!step_.reduces_by_teams(plan->strategy)) return give_values(call, plan, done);
      auto of_teams = plan_of(plan->strategy);  // whose buckets are larger
      if (of_teams.ok())
        return give_values(call, std::make_shared<const Plan>(std::move(of_teams).value()), done);
      fail(of_teams.status(), true);
      done(of_teams.status());
    });
  };
  if (!mesh_) {
    total_replicas_ = replicas;
    return agreed({own_gpus});
  }
  const transport::StartHeader header{digest_of(mine), mine.size(), replicas, own_gpus};
  calls_.exchange(call, shape_of(0, Kind::kStart, DType::kUint8, Algorithm::kOneHop, 0),
                  transport::encode(header), "dsgd_start",
                  [this, call, mine, unusable, agreed, done](const Status& status,
                                                             const std::vector<std::vector<std::byte>>& all) {
                    if (!status.ok()) return done(status);
                    bool equal = true;
                    std::vector<uint32_t> gpus_of;
                    transport::StartHeader first;
                    total_replicas_ = 0;
                    for (size_t rank = 0; rank < all.size(); ++rank) {
                      auto theirs = transport::decode_start_header(all[rank]);
                      if (!theirs.ok())
                        return done(other_version(static_cast<int32_t>(rank), theirs.status()));
                      if (rank == 0) first = theirs.value();
                      equal = equal && theirs->signature == first.signature &&
                              theirs->signature_length == first.signature_length;
                      total_replicas_ += theirs->replicas;
                      gpus_of.push_back(theirs->gpus);
                    }
                    if (!equal) return compare_signatures(call, mine, first.signature_length, done);
                    if (!unusable.ok()) return done(unusable);
                    agreed(gpus_of);
                  });
}

bool Engine::has_joined_later(int32_t rank) const {
  const auto& members = mesh_->members().view().members;
  return members[static_cast<size_t>(rank)].number >= options_.num_workers &&
         members[0].number < options_.num_workers;
}

void Engine::fail_newcomer(const std::string& difference) {
  fail(Status(Code::kMismatch,
              "dsgd_start: this worker cannot join the running job: " + difference +
                  "; register the same parameters in the same order and set the same options as the others, "
                  "and the strategy that they have now")
           .with_rank(rank(), mesh_->members().host_of(rank()))
           .with_operation("dsgd_start"),
       false);
}

// Sends rank 0's signature to all workers. Each answers with its first difference; all report that of the
// lowest rank. If only workers that have joined later differ, these fail, and the others start again in a
// view without them.
void Engine::compare_signatures(const std::shared_ptr<Call>& call, std::string mine, size_t length,
                                Done done) {
  if (length > Object::kLargest) {
    return done(
        Status(Code::kMismatch,
               "dsgd_start: rank 0 runs another version of dsgd; install the same version on all workers"));
  }
  auto theirs = std::make_shared<std::vector<std::byte>>(length);
  if (rank() == 0) *theirs = bytes_of(mine);
  calls_.broadcast(call, Kind::kStart, DType::kUint8, *theirs, 0, "dsgd_start",
                   [this, call, mine, theirs, done](const Status& status) {
                     if (!status.ok()) return done(status);
                     const std::string difference = first_difference(text_of(*theirs), mine, rank());
                     calls_.exchange(call, shape_of(0, Kind::kStart, DType::kUint8, Algorithm::kOneHop, 1),
                                     bytes_of(difference), "dsgd_start",
                                     [this, done](const Status& status,
                                                  const std::vector<std::vector<std::byte>>& differences) {
                                       status.ok() ? on_differences(differences, done) : done(status);
                                     });
                   });
}

// `differences`: by rank, the first from rank 0; empty: there is none. A worker that has joined later fails
// alone if it differs.
void Engine::on_differences(const std::vector<std::vector<std::byte>>& differences, const Done& done) {
  // If all others differ from rank 0, it is the odd one.
  const bool all_differ =
      differences.size() > 2 && std::none_of(differences.begin() + 1, differences.end(),
                                             [](const auto& difference) { return difference.empty(); });
  bool newcomer_differs = false;
  for (size_t r = 0; r < differences.size(); ++r) {
    if (differences[r].empty()) continue;
    if (!has_joined_later(static_cast<int32_t>(r)))
      return done(signature_mismatch(text_of(differences[r]), all_differ ? 0 : static_cast<int32_t>(r)));
    newcomer_differs = true;
  }
  if (!newcomer_differs)
    return done(Status(Code::kInternal, "dsgd_start: signatures differ but no line does"));
  const auto& own = differences[static_cast<size_t>(rank())];
  if (!own.empty()) fail_newcomer(text_of(own));
}

void Engine::give_values(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan, Done done) {
  if (!started_) {
    auto contexts = make_contexts(model_);
    if (!contexts.ok()) return done(contexts.status());
    step_.set_contexts(std::move(contexts).value());
  }
  auto made = host_values(rank() == start_source_);  // the source's values are still being copied then
  if (!made.ok()) return done(made.status());
  const auto values = std::make_shared<const HostValues>(std::move(made).value());
  auto end_start = [this, plan, done](const Status& status) {
    if (!status.ok() || started_) return done(status);
    if (Status applied = apply_plan(*plan); !applied.ok()) return done(applied);
    started_ = true;
    note_held();
    log_->info("started: " + counted(model_.parameters.size(), "parameter") + " in " +
               counted(step_.plan().size(), "bucket") + ", strategy " + plan->strategy.describe() + ", " +
               std::to_string(step_.buffer_bytes()) + " bytes of buffers");
    done({});
  };
  auto take_values = [this, call, values, end_start](const Status& status) {
    if (!status.ok() || started_) return end_start(status);  // it holds these values already
    if (Status spread = spread_values(*values); !spread.ok()) return end_start(spread);
    step_.when_reached(call->deadline,
                       in_view([values, end_start](const Status& reached) { end_start(reached); }));
  };
  step_.when_reached(
      call->deadline, in_view([this, call, values, take_values](const Status& status) {
        if (!status.ok()) return take_values(status);
        const auto one_given = join(mesh_ ? model_.parameters.size() + 1 : 1, take_values);
        for (size_t p = 0; mesh_ && p < model_.parameters.size(); ++p) {
          const Parameter& parameter = *model_.parameters[p];
          const std::span<std::byte> data(static_cast<std::byte*>((*values)[p].get()), parameter.nbytes());
          calls_.broadcast(call, Kind::kStart, parameter.dtype, data, start_source_, "dsgd_start", one_given);
        }
        one_given({});
      }));
}

Result<Engine::HostValues> Engine::host_values(bool filled) {
  // A worker that has started holds the values already, and the host may be reading them.
  const bool in_place = step_.contexts().back().is_host() && (filled || !started_);
  device::Device& staging = *step_.contexts().back().device;
  const Replica& first = *model_.replicas[0];
  for (DeviceContext& context : step_.contexts()) {
    if (Status status = context.follow_default_stream(); !status.ok()) return status;
  }
  HostValues values;
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    std::byte* value = model_.bindings[0][p].value;
    const size_t nbytes = model_.parameters[p]->nbytes();
    if (in_place) {
      values.push_back({std::shared_ptr<void>(), value});  // the host's own
      continue;
    }
    auto made = staging.allocate_staging(nbytes);
    if (!made.ok()) return made.status();
    values.push_back(std::move(made).value());
    if (!filled || nbytes == 0) continue;
    for (DeviceContext& context : step_.contexts()) {
      if (context.device != first.device) continue;
      Status status = context.queue->copy(values.back().get(), value, nbytes);
      if (!status.ok()) return status;
    }
  }
  return values;
}

Status Engine::spread_values(const HostValues& values) {
  for (DeviceContext& context : step_.contexts()) {
    for (uint32_t r : context.replicas) {
      for (size_t p = 0; p < model_.parameters.size(); ++p) {
        if (!values[p]) continue;
        Status status =
            context.queue->copy(model_.bindings[r][p].value, values[p].get(), model_.parameters[p]->nbytes());
        if (!status.ok()) return status;
      }
    }
  }
  return {};
}

Result<Plan> Engine::plan_of(const StrategySpec& strategy, bool frozen_too) const {
  const bool needs_copies = model_.has_state() || !strategy.traits().takes_copies;
  if (options_.views_change && strategy.traits().owner_updates() && strategy.copies < 2 && needs_copies) {
    return Status(
               Code::kUnsupported,
               "strategy '" + strategy.name() +
                   "' keeps one copy of the optimizer's state, so the job could not go on in another "
                   "view (min_workers or max_workers differs from num_workers, or rejoin_timeout is set); " +
                   (strategy.traits().takes_copies ? "set copies=2 or more, use " : "use ") +
                   "allreduce or simple, or leave all three unset")
        .with_parameter("min_workers");
  }
  if (options_.servers > 0 && strategy.copies > options_.servers) {
    return Status(Code::kInvalidArgument,
                  "strategy '" + strategy.describe() + "' needs " + std::to_string(strategy.copies) +
                      " servers, and the key servers is " + std::to_string(options_.servers) +
                      "; raise servers or lower copies")
        .with_parameter("copies");
  }
  if (options_.views_change && model_.optimizer->is_none()) {
    return Status(Code::kUnsupported,
                  "optimizer 'none' leaves the update to the host, so a worker could not copy it in another "
                  "view (min_workers or max_workers differs from num_workers, or rejoin_timeout is set); use "
                  "another optimizer, or leave all three unset")
        .with_parameter("min_workers");
  }
  if (started_ && strategy.traits().takes_algorithm && strategy.algorithm->nccl == NcclUse::kRequired &&
      !step_.has_teams()) {
    return Status(Code::kUnsupported,
                  "algorithm = nccl cannot be used: no GPU team was formed at start; start with "
                  "algorithm=nccl to see why, or use auto")
        .with_parameter("algorithm");
  }
  std::vector<PlanParameter> planned;
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    const Parameter& parameter = *model_.parameters[p];
    planned.push_back({parameter.dtype, parameter.count,
                       parameter.trained && (frozen_too || !model_.settings[p].frozen), parameter.name});
  }
  PlanOptions options{size(), options_.servers > 0 ? options_.servers : size(), options_.bucket_bytes};
  const auto& replicas = model_.replicas;
  const bool on_one_gpu = std::all_of(replicas.begin(), replicas.end(), [&](const auto& replica) {
    return !replica->device->is_host() && replica->device == replicas.front()->device;
  });
  if (options.bucket_bytes == 0) {
    options.bucket_bytes = step_.reduces_by_teams(strategy) ? kBucketOfTeams
                           : !mesh_ && on_one_gpu           ? kBucketOfOneGpu
                                                            : kBucket;
  }
  if (options_.step.reproducible) options.trailer = kExactTrailer;
  if (mesh_) {
    for (const auto& member : mesh_->members().view().members) options.numbers.push_back(member.number);
  }
  auto plan = make_plan(planned, strategy, options);
  if (plan.ok() && options_.views_change && strategy.traits().owner_updates()) {
    const size_t ranges = key_ranges(plan.value()).size();
    if (ranges > transport::kMostHeldRanges) {
      return Status(Code::kLimit, "strategy '" + strategy.name() + "' cuts this model into " +
                                      std::to_string(ranges) + " key ranges; at most " +
                                      std::to_string(transport::kMostHeldRanges) +
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

// A failed allocation here fails the session on all workers, since they have agreed on the plan.
Status Engine::apply_plan(Plan plan) {
  step_.set_replicas(total_replicas_);
  Status status = step_.set_plan(std::move(plan), strategy_version_);
  if (!status.ok()) fail(status, true);
  return status;
}

Status Engine::replan() {
  if (!started_) return {};
  auto plan = plan_of(step_.strategy());
  if (!plan.ok()) return plan.status();
  // The state of a range stays where it is, so its owner must, too.
  std::map<std::pair<uint32_t, size_t>, int32_t> owners;
  for (const Bucket& bucket : step_.plan()) {
    for (const Piece& piece : bucket.pieces) owners[{piece.parameter, piece.begin}] = piece.owner;
  }
  for (const Bucket& bucket : plan.value().buckets) {
    for (const Piece& piece : bucket.pieces) {
      const auto before = owners.find({piece.parameter, piece.begin});
      if (!step_.updates_at_owner() || before == owners.end() || before->second == piece.owner) continue;
      return Status(Code::kInvalidArgument,
                    "strategy '" + step_.strategy().name() + "' gives elements " +
                        std::to_string(piece.begin) + " to " + std::to_string(piece.begin + piece.count) +
                        " of parameter '" + model_.parameters[piece.parameter]->name + "' to rank " +
                        std::to_string(piece.owner) + ", and gave them to rank " +
                        std::to_string(before->second) +
                        " before; the function `owner` of a plug-in must return the same rank for the same "
                        "arguments");
    }
  }
  return apply_plan(std::move(plan).value());
}

Engine::Done Engine::begin_change(Done done) {
  ++changes_;
  return [this, done = std::move(done)](const Status& status) {
    --changes_;
    done(status);
  };
}

void Engine::set_strategy(const StrategySpec& strategy, Done done, const CallOptions& options) {
  if (!torn_.ok()) return done(torn_);
  if (Status status = admit_call(); !status.ok()) return done(status);
  done = begin_change(std::move(done));
  const std::shared_ptr<Call> call = calls_.begin(&done, options);
  auto planned = plan_of(strategy);
  const std::string mine = describe_plan(planned, strategy);
  const Status unusable = planned.status();
  const auto plan = std::make_shared<const Plan>(unusable.ok() ? std::move(planned).value() : Plan());
  if (!mesh_) return unusable.ok() ? replace_plan(call->deadline, plan, std::move(done)) : done(unusable);
  calls_.exchange(call, shape_of(0, Kind::kStrategy, DType::kUint8, Algorithm::kOneHop, 0), bytes_of(mine),
                  "dsgd_strategy_set",
                  [this, call, plan, unusable, done](const Status& status,
                                                     const std::vector<std::vector<std::byte>>& all) {
                    if (!status.ok()) return done(status);
                    for (size_t rank = 1; rank < all.size(); ++rank) {
                      if (all[rank] == all[0]) continue;
                      return done(Status(Code::kMismatch,
                                         "dsgd_strategy_set: workers disagree: rank 0 asks for '" +
                                             text_of(all[0]) + "', rank " + std::to_string(rank) + " for '" +
                                             text_of(all[rank]) + "'; give the same arguments everywhere")
                                      .with_rank(static_cast<int32_t>(rank))
                                      .with_operation("dsgd_strategy_set"));
                    }
                    if (!unusable.ok()) return done(unusable);
                    move_state(call, [this, call, plan, done](const Status& moved) {
                      moved.ok() ? replace_plan(call->deadline, plan, done) : done(moved);
                    });
                  });
}

// A change of the view waits until the new plan holds.
void Engine::replace_plan(transport::Time deadline, std::shared_ptr<const Plan> plan, Done replaced) {
  ++strategy_version_;
  giver_.drop_all(Status(kNotNow, "it changes the strategy"));
  applying_ = true;
  const Done done = [this, replaced = std::move(replaced)](const Status& status) {
    applying_ = false;
    replaced(status);
    enter_view();  // one that has come meanwhile
  };
  step_.optimizer_state().copy(false, deadline, [this, deadline, plan, done](const Status& fetched) {
    if (!fetched.ok()) return done(fetched);
    if (Status applied = apply_plan(*plan); !applied.ok()) return done(applied);
    note_held();
    step_.optimizer_state().copy(true, deadline, [this, plan, done](const Status& spread) {
      if (spread.ok())
        log_->info("strategy is " + plan->strategy.describe() + " from step " + std::to_string(next_step_) +
                   " on");
      done(spread);
    });
  });
}

// Optimizer state goes from the owners of its ranges to every worker.
void Engine::move_state(const std::shared_ptr<Call>& call, Done done) {
  if (!step_.updates_at_owner()) return done({});
  auto planned = plan_of(step_.strategy(), true);  // a range has the same owner in any plan of the strategy
  if (!planned.ok()) return done(planned.status());
  const auto plan = std::make_shared<const Plan>(std::move(planned).value());
  std::vector<std::pair<size_t, size_t>> gathered;  // bucket, tensor
  for (size_t bucket = 0; bucket < plan->buckets.size(); ++bucket) {
    size_t tensors = 0;
    for (const Piece& piece : plan->buckets[bucket].pieces) {
      tensors = std::max(tensors, model_.states_of(*model_.parameters[piece.parameter]));
    }
    for (size_t tensor = 0; tensor < tensors; ++tensor) gathered.emplace_back(bucket, tensor);
  }
  const auto moved = join(gathered.size() + 1, std::move(done));
  for (const auto& [bucket, tensor] : gathered) gather_state(call, plan, bucket, tensor, moved);
  moved({});
}

// Gathers one of the optimizer's tensors, for the elements of one bucket.
void Engine::gather_state(const std::shared_ptr<Call>& call, std::shared_ptr<const Plan> plan, size_t index,
                          size_t tensor, Done done) {
  const Bucket& bucket = plan->buckets[index];
  const size_t element = dtype_size(bucket.dtype);
  auto buffer = std::make_shared<std::vector<std::byte>>(bucket.elements * element);
  auto place = [this, element, tensor](const Piece& piece) -> std::byte* {
    const auto& state = step_.optimizer_state().on_host()[piece.parameter];
    return tensor < state.size() ? static_cast<std::byte*>(state[tensor].get()) + piece.begin * element
                                 : nullptr;
  };
  for (const Piece& piece : bucket.pieces) {
    if (piece.owner == rank() && place(piece)) {
      std::memcpy(buffer->data() + piece.position * element, place(piece), piece.count * element);
    }
  }
  calls_.schedule(
      call,
      [this, buffer, element, plan, index](uint64_t operation, Done ended) {
        const Bucket& bucket = plan->buckets[index];
        BulkHeader header =
            shape_of(operation, Kind::kStrategy, bucket.dtype, Algorithm::kDirect, bucket.elements);
        DirectPlan direct;
        direct.slices = slices_between(bucket.bounds);
        direct.reduce = false;
        direct.element = direct.result_element = element;
        direct.data = direct.result = buffer->data();
        header.tag = Direct::tag(mesh_->operations, direct);
        auto task = std::make_unique<Direct>(mesh_->operations, header, std::move(direct), false, ended);
        task->rename("dsgd_strategy_set");
        return task;
      },
      [this, buffer, element, plan, index, place, done](const Status& status) {
        if (status.ok()) {
          for (const Piece& piece : plan->buckets[index].pieces) {
            if (piece.owner != rank() && place(piece)) {
              std::memcpy(place(piece), buffer->data() + piece.position * element, piece.count * element);
            }
          }
        }
        done(status);
      });
}

}  // namespace dsgd

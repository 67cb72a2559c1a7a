// Loads checkpoints. Each worker reads all files, including those of other workers, into new memory. The
// model changes only after all workers have read and validated the same checkpoint.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/mesh/channels.h"
#include "core/session/checkpoints.h"
#include "core/session/saved_parts.h"

namespace dsgd {

using checkpoint::Manifest;
using checkpoint::Store;
using checkpoint::Targets;

namespace {

std::string first_word(const std::string& text) { return text.substr(0, text.find(' ')); }

Status misfit(const Store::Found& found, const std::string& why) {
  return Status(Code::kMismatch, "the checkpoint '" + found.path + "' does not fit this model: " + why);
}

std::string describe_tensor(DType dtype, const std::vector<int64_t>& shape) {
  return std::string(dtype_name(dtype)) + ' ' + shape_text(shape);
}

SampleLedger ledger_of(const Manifest::Shard& saved, const std::vector<uint64_t>& workers) {
  SampleLedger ledger = even_ledger(saved.samples, saved.begin, workers);
  ledger.seed = saved.seed;
  ledger.shuffle = saved.shuffle;
  ledger.epoch = saved.epoch;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    ledger.parts[rank].taken = saved.drawn[rank];
    ledger.parts[rank].runs = saved.runs[rank];
  }
  return ledger;
}

// Identities for the workers that have saved. They only have to be distinct.
std::vector<uint64_t> savers(const Manifest::Shard& saved) {
  std::vector<uint64_t> workers(saved.drawn.size());
  for (size_t rank = 0; rank < workers.size(); ++rank) workers[rank] = ~uint64_t{rank};
  return workers;
}

// Another number of workers deals the rest out anew.
SampleLedger ledger_for(const Manifest::Shard& saved, const std::vector<uint64_t>& workers) {
  if (saved.drawn.size() == workers.size()) return ledger_of(saved, workers);
  SampleLedger ledger = ledger_of(saved, savers(saved));
  std::vector<WorkerShare> shares;
  for (const uint64_t worker : savers(saved)) shares.push_back({worker, 0, 0, false});
  for (const uint64_t worker : workers) shares.push_back({worker, 0, 0, true});
  deal(&ledger, shares);
  return ledger;
}

}  // namespace

// A program that is restarted after a failure loads a checkpoint before its first step. If its worker has
// joined a running job, it holds the state of the others already. Their next call may be a load all the same:
// before the first step of the job, or because they go back to a checkpoint. So this worker follows: it waits
// until they begin a call, and takes part if that is a load. Ranks are in the order of joining, so at rank 0
// no other worker is older, and it does not wait. Then it does not load if the job has completed a step, or
// if another worker has begun the step already (take_reports).
void Checkpoints::load(const std::string& folder, Done done, const CallOptions& options) {
  const bool has_just_joined = state_.joined_at == state_.next_step && state_.torn.ok();
  if (has_just_joined && state_.next_step > 0 && state_.rank() == 0) {
    log_no_load();
    return done({});
  }
  const auto checkpoint = new_call(Kind::kLoad, folder, options);
  checkpoint->follows = has_just_joined;
  checkpoint->done = [this, its = checkpoint.get(), done = std::move(done)](const Status& status) {
    const bool has_begun = its->call || (!its->follows && !its->expired.ok());
    if (has_begun && status.code() != Code::kViewChanged) {
      ++loads_;
      load_result_ = status.code();
    }
    done(status);
  };
  // While a load follows, this worker still gives its state to others that join.
  if (!checkpoint->follows) checkpoint->done = state_.begin_change(std::move(checkpoint->done));
  if (!state_.failure.ok()) return queue_.end(checkpoint, state_.failure);
  if (checkpoint->follows && state_.rank() > 0) {
    state_.log->info(
        "dsgd_checkpoint_load waits for the next call of the other workers, and loads if they load");
    checkpoint->done = state_.stalls.watch([this, its = checkpoint.get()] { return wait_report(*its); },
                                           std::move(checkpoint->done));
  }
  queue_.add(checkpoint, [this](const auto& load) { start_load(load); });
}

// A load needs all workers of the view. So after one has left, this worker does not wait for a load.
Checkpoints::NextCall Checkpoints::next_of_others() const {
  const auto begun = [this](uint32_t channel, std::optional<Kind> kind = {}) {
    const uint64_t first = operation_number(state_.calls.next(channel), 0);
    return state_.mesh->operations.only_peers_have_begun(first, kind);
  };
  if (begun(kCheckpointChannel, Kind::kLoad)) return NextCall::kLoad;
  if (state_.rank() == 0 && step_without_load_ == state_.next_step && state_.torn.ok())
    return NextCall::kOther;
  bool other = false;
  for (uint32_t channel = 0; channel < kChannels; ++channel) other = other || begun(channel);
  for (int32_t rank = 0; rank < state_.size(); ++rank) other = other || state_.mesh->peers.has_left(rank);
  return other ? NextCall::kOther : NextCall::kUnknown;
}

// Once the load has begun, the class Calls reports what it waits for.
WaitReport Checkpoints::wait_report(const CheckpointCall& load) const {
  const bool waits_for_others = !load.call && !state_.recovering() && state_.size() > 1;
  if (!waits_for_others || next_of_others() != NextCall::kUnknown) return {};
  std::vector<int32_t> others = state_.mesh->members().world()->ranks;
  std::erase(others, state_.rank());
  return state_.report_of(others, kind_name(Kind::kLoad), "not begun their next call");
}

void Checkpoints::log_no_load() const {
  state_.log->info("dsgd_checkpoint_load does nothing: this worker joined a running job and has its state");
}

void Checkpoints::add_to_report(transport::ViewReport* mine) const {
  mine->loads = loads_;
  mine->load_result = load_result_;
}

void Checkpoints::take_reports(const std::vector<transport::ViewReport>& reports) {
  if (state_.started && state_.joined_at == state_.next_step) {
    // A worker that has not been in a complete view yet reports 1.
    const uint64_t mine = reports[static_cast<size_t>(state_.rank())].calls[0];
    for (const auto& report : reports)
      if (mine > 1 && report.calls[0] > mine) step_without_load_ = state_.next_step;
  }
  const auto& most = *std::max_element(reports.begin(), reports.end(),
                                       [](const auto& a, const auto& b) { return a.loads < b.loads; });
  if (most.loads == loads_) return;
  if (!state_.learner && most.load_result != Code::kOk) missed_load_ = {state_.next_step, most.load_result};
  loads_ = most.loads;
  load_result_ = most.load_result;
}

void Checkpoints::start_load(const SharedCall& checkpoint) {
  const auto missed = std::exchange(missed_load_, std::nullopt);
  if (missed && missed->step == state_.next_step) {
    return queue_.end(
        checkpoint,
        Status(missed->result,
               std::string("dsgd_checkpoint_load has ended with ") + code_name(missed->result) +
                   " on other workers, just before the workers of the job changed; see their errors")
            .with_operation(kind_name(Kind::kLoad)));
  }
  if (checkpoint->follows) {
    if (next_of_others() == NextCall::kOther) {
      log_no_load();
      return queue_.end(checkpoint, {});
    }
    state_.joined_at.reset();
    if (checkpoint->done) checkpoint->done = state_.begin_change(std::move(checkpoint->done));
  }
  if (Status status = begin(checkpoint); !status.ok()) return queue_.end(checkpoint, status);
  const auto found = std::make_shared<Store::Found>();
  queue_.on_files(
      checkpoint,
      [files = queue_.files(), folder = checkpoint->folder, found] {
        auto newest = Store(*files, folder).find();
        if (newest.ok()) *found = std::move(newest).value();
        return newest.status();
      },
      [this, checkpoint, found](const Status& status) {
        if (status.ok()) checkpoint->found = std::move(*found);
        checkpoint->mine.failure = status.ok() ? check_manifest(checkpoint->found) : status;
        checkpoint->mine.step = checkpoint->found.manifest.step;
        checkpoint->mine.checksum = checkpoint->found.checksum;
        exchange_reports(checkpoint, [this, checkpoint](const Reports& reports) {
          const Status differs =
              first_error(reports, checkpoint->kind, [&first = reports[0]](const auto& one) {
                if (one.checksum == first.checksum) return Status();
                return Status(Code::kMismatch,
                              "it finds the checkpoint of step " + std::to_string(one.step) +
                                  ", but rank 0 another one, of step " + std::to_string(first.step) +
                                  "; give all workers one folder on a file system that they share");
              });
          differs.ok() ? read(checkpoint) : queue_.end(checkpoint, differs);
        });
      });
}

Status Checkpoints::check_manifest(const Store::Found& found) const {
  const Manifest& manifest = found.manifest;
  std::map<std::string, const Manifest::Parameter*> saved;
  for (const auto& parameter : manifest.parameters) saved[parameter.name] = &parameter;
  for (const auto& parameter : state_.model.parameters) {
    const auto at = saved.find(parameter->name);
    if (at == saved.end())
      return misfit(found,
                    "it has no parameter '" + parameter->name + "'; register the parameters that were saved")
          .with_parameter(parameter->name);
    const Manifest::Parameter& its = *at->second;
    if (its.dtype != parameter->dtype || its.shape != parameter->shape)
      return misfit(found, "parameter '" + parameter->name + "' is " +
                               describe_tensor(parameter->dtype, parameter->shape) + " here and " +
                               describe_tensor(its.dtype, its.shape) + " there; register it as it was saved")
          .with_parameter(parameter->name);
    saved.erase(at);
  }
  for (const Manifest::Shard& shard : manifest.shards) {
    if (!is_sound(ledger_of(shard, savers(shard))))
      return Status(Code::kIo, "the manifest of the checkpoint '" + found.path +
                                   "' is damaged: a data shard is inconsistent; load another checkpoint");
  }
  if (!saved.empty())
    return misfit(found, "it has a parameter '" + printable(saved.begin()->first) +
                             "' that is not registered here; register the parameters that were saved")
        .with_parameter(saved.begin()->first);
  const std::string here = first_word(state_.model.optimizer->describe()),
                    there = first_word(manifest.optimizer);
  if (here != there)
    return misfit(found, "the optimizer is '" + here + "' here and '" + printable(there) +
                             "' there; set the optimizer that was saved");
  return {};
}

// Memory for all that is read; of the optimizer's state only what this worker keeps.
Status Checkpoints::make_targets(CheckpointCall* checkpoint) {
  device::Device& staging = *state_.step.contexts().back().device;
  const bool at_owner = state_.step.updates_at_owner();
  auto owners = at_owner ? state_.plan_of(state_.step.strategy(), true) : Result<Plan>(Plan());
  if (!owners.ok()) return owners.status();
  const std::vector<size_t> states = states_by_parameter();
  checkpoint->states.resize(states.size());
  for (const auto& parameter : state_.model.parameters) {
    const uint32_t p = parameter->index;
    const std::vector<std::pair<uint64_t, uint64_t>> all = {{0, parameter->count}};
    Memory& value = checkpoint->values.emplace_back();
    DSGD_RETURN_IF_ERROR(staging.allocate_staging(parameter->nbytes()).into(&value));
    checkpoint->targets[{parameter->name, ""}] = {parameter->dtype, parameter->count, true, bytes(value),
                                                  all};
    for (size_t s = 0; s < states[p]; ++s) {
      const Memory state = untouched_memory(parameter->state_nbytes());
      if (!state)
        return Status(Code::kNoMemory, "no memory for " + std::to_string(parameter->state_nbytes()) +
                                           " bytes of optimizer state");
      checkpoint->states[p].push_back(state);
      checkpoint->targets[{parameter->name, state_name(*state_.model.optimizer, static_cast<int32_t>(s))}] = {
          wide(parameter->dtype), parameter->count, false, bytes(state),
          at_owner ? owned_ranges(owners.value(), p, state_.rank(), true) : all};
    }
  }
  return {};
}

void Checkpoints::read(const SharedCall& checkpoint) {
  const auto ended = [this, checkpoint](const Status& status) {
    checkpoint->mine.failure = status;
    checkpoint->roster = state_.shards->roster();
    if (status.ok()) {
      state_.prepare(
          {*checkpoint->call,
           [this, checkpoint](const Done& applied) { apply(checkpoint, state_.calls.deadline(), applied); },
           [this, checkpoint](const Status& why) { queue_.end(checkpoint, why); }});
    }
    exchange_reports(checkpoint, [this, checkpoint](const Reports&) {
      apply(checkpoint, checkpoint->call->deadline, [](const Status&) {});
    });
  };
  if (Status status = make_targets(checkpoint.get()); !status.ok()) return ended(status);
  // The memory stays until it is read, also after a timeout.
  queue_.on_files(
      checkpoint,
      [files = queue_.files(), found = checkpoint->found, targets = std::move(checkpoint->targets),
       values = checkpoint->values,
       states = checkpoint->states]() mutable { return checkpoint::read_tensors(*files, found, &targets); },
      ended);
}

// A failure of a device fails the session now, since the other workers change their models.
// A change of the view waits until all of it is in the replicas.
void Checkpoints::apply(const SharedCall& checkpoint, transport::Time deadline, const Done& applied) {
  state_.applying = true;
  state_.giver.drop_all(Status(StateGiver::kNotNow, "it loads a checkpoint"));
  const auto ended = [this, checkpoint, applied](const Status& status) {
    state_.applying = false;
    if (!status.ok()) {
      state_.fail(status, true);
      return queue_.end(checkpoint, status);
    }
    const Manifest& manifest = checkpoint->found.manifest;
    std::map<std::string, uint64_t> updates;
    for (const auto& saved : manifest.parameters) updates[saved.name] = saved.updates;
    for (const auto& parameter : state_.model.parameters)
      state_.model.updates[parameter->index] = updates[parameter->name];
    state_.model.optimizer->set_learning_rate(manifest.learning_rate);
    state_.model.loss_scale.restore(manifest.loss_scale, static_cast<int>(manifest.loss_scale_steps));
    restore_shards(manifest, *checkpoint->roster);
    state_.next_step = manifest.step;
    state_.step.set_version(++state_.strategy_version);
    state_.applied_change = checkpoint->call->number;
    state_.torn = {};
    state_.compared = false;
    state_.log->info("loaded the checkpoint '" + checkpoint->found.path + "': step " +
                     std::to_string(state_.next_step) + ", saved by " +
                     counted(static_cast<size_t>(manifest.workers), "worker") + " under " +
                     printable(manifest.strategy));
    queue_.end(checkpoint, {});
    applied({});
    state_.change_applied();
  };
  if (Status status = state_.spread_values(checkpoint->values); !status.ok()) return ended(status);
  OptimizerState& state = state_.step.optimizer_state().on_host();
  state.resize(state_.model.parameters.size());
  for (size_t p = 0; p < state.size(); ++p) state[p] = checkpoint->states[p];
  state_.step.optimizer_state().spread_to_devices(deadline,
                                                  [this, checkpoint, deadline, ended](const Status& copied) {
                                                    if (!copied.ok()) return ended(copied);
                                                    state_.step.when_queues_done(deadline, ended);
                                                  });
}

// Restores each saved shard into the first live one, in the order of creation, that reads the same data.
void Checkpoints::restore_shards(const Manifest& manifest, const Roster& roster) {
  auto live = state_.shards->live();
  for (const Manifest::Shard& saved : manifest.shards) {
    const auto same = std::find_if(live.begin(), live.end(), [&](const auto& known) {
      return known->read(
          [&](const Shard& shard) { return shard.same_data(saved.samples, saved.seed, saved.shuffle); });
    });
    if (same == live.end()) continue;
    state_.shards->restore(*same, ledger_for(saved, roster.workers));
    live.erase(same);
  }
}

}  // namespace dsgd

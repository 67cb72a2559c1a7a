// Saves checkpoints. All workers copy their parts of the model at the same step. While steps go on, each
// writes its file; when all have, rank 0 publishes the checkpoint. Three exchanges hold this together:
//
//   1  all have copied the same step, and rank 0 has made the draft's folder
//   2  all files are on the disk; this also proves that every worker has committed the step
//   3  rank 0 has published the checkpoint
//
// A failure of one worker travels with its next exchange, so the call ends alike on all of them.

#include <algorithm>
#include <cstring>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/tensor_name.h"
#include "core/session/checkpoints.h"
#include "core/session/saved_parts.h"
#include "core/session/signature.h"
#include "transport/schema/codec.h"

namespace dsgd {

using checkpoint::Manifest;
using checkpoint::Store;
using checkpoint::StoredTensor;
using transport::CheckpointReport;

void Checkpoints::save(const std::string& folder, std::function<void()> taken, Done done,
                       const CallOptions& options) {
  const auto checkpoint = new_call(Kind::kSave, folder, options);
  checkpoint->taken = std::move(taken);
  checkpoint->done = std::move(done);
  if (!state_.failure.ok()) return queue_.end(checkpoint, state_.failure);
  queue_.add(checkpoint, [this](const auto& save) { start_save(save); });
}

void Checkpoints::save_at_interval(std::function<void()> taken) {
  save(state_.options.checkpoint_dir, std::move(taken),
       [this, step = state_.next_step](const Status& status) {
         if (status.ok() || !state_.failure.ok()) return;
         state_.events.note_event(
             "a checkpoint was not saved",
             "the checkpoint of step " + std::to_string(step) + " was not saved: " + status.message());
       });
}

void Checkpoints::start_save(const SharedCall& checkpoint) {
  if (!state_.torn.ok()) return queue_.end(checkpoint, state_.torn);
  if (Status status = begin(checkpoint); !status.ok()) return queue_.end(checkpoint, status);
  describe_model(checkpoint.get());
  checkpoint->draft = {state_.next_step, draft_number(*checkpoint)};
  const auto copied = [this, checkpoint](const Status& status) {
    if (!checkpoint->done) return;
    checkpoint->mine.failure = status;
    std::exchange(checkpoint->taken, nullptr)();
    prepare_folder(checkpoint);
  };
  if (Status status = enqueue_snapshot(checkpoint.get()); !status.ok()) return copied(status);
  state_.step.when_queues_done(checkpoint->call->deadline, copied);
}

// All workers of the view get the same number, and no worker of another view or job.
uint64_t Checkpoints::draft_number(const CheckpointCall& checkpoint) const {
  if (!state_.mesh) return static_cast<uint64_t>(state_.loop.now().count());
  const transport::JoinReply& view = state_.mesh->members().view();
  return digest_of(view.job_nonce + ' ' + std::to_string(view.view) + ' ' +
                   std::to_string(checkpoint.call->number));
}

void Checkpoints::describe_model(CheckpointCall* checkpoint) const {
  Manifest& manifest = checkpoint->manifest;
  manifest.library = state_.options.library_version;
  manifest.step = checkpoint->mine.step = state_.next_step;
  manifest.workers = state_.size();
  manifest.view = state_.mesh ? state_.mesh->members().view().view : 1;
  manifest.strategy = state_.step.strategy().describe();
  manifest.optimizer = state_.model.optimizer->describe();
  manifest.learning_rate = state_.model.optimizer->learning_rate();
  manifest.loss_scale = state_.model.loss_scale.factor();
  manifest.loss_scale_steps = static_cast<uint64_t>(state_.model.loss_scale.age());
  for (const auto& parameter : state_.model.parameters) {
    manifest.parameters.push_back({parameter->name, parameter->dtype, parameter->shape, parameter->trained,
                                   state_.model.updates[parameter->index]});
  }
  checkpoint->ledgers = state_.shards->ledgers();
  checkpoint->mine.drawn = state_.shards->drawn();
}

// Copies this worker's parts into one buffer, as they will lie in the file. Copies from a device are only
// enqueued.
Status Checkpoints::enqueue_snapshot(CheckpointCall* checkpoint) {
  if (checkpoint->mine.drawn.shards.size() > transport::kMaxShards)
    return Status(Code::kLimit, "a checkpoint has at most " + std::to_string(transport::kMaxShards) +
                                    " data shards; free those that are not used");
  const bool at_owner = state_.step.updates_at_owner();
  auto owners = at_owner ? state_.plan_of(state_.step.strategy(), true) : Result<Plan>(Plan());
  if (!owners.ok()) return owners.status();
  auto parts = saved_parts(state_.model, states_by_parameter(), at_owner ? &owners.value() : nullptr,
                           state_.rank(), state_.size());
  const auto dtype_of = [this](const SavedPart& part) {
    const DType dtype = state_.model.parameters[part.parameter]->dtype;
    return part.state < 0 ? dtype : wide(dtype);
  };
  // Wide elements first, so that all are aligned.
  std::stable_sort(parts.begin(), parts.end(), [&](const SavedPart& a, const SavedPart& b) {
    return dtype_size(dtype_of(a)) > dtype_size(dtype_of(b));
  });
  std::vector<StoredTensor> tensors;
  for (const SavedPart& part : parts) {
    const Parameter& parameter = *state_.model.parameters[part.parameter];
    const bool whole = part.count == parameter.count;
    const checkpoint::TensorName name{
        parameter.name, part.state < 0 ? std::string() : state_name(*state_.model.optimizer, part.state),
        whole ? 0 : part.begin, whole ? 0 : part.begin + part.count};
    const uint64_t begin = checkpoint->nbytes;
    checkpoint->nbytes += part.count * dtype_size(dtype_of(part));
    tensors.push_back({checkpoint::write_tensor_name(name), dtype_of(part),
                       whole ? parameter.shape : std::vector<int64_t>{static_cast<int64_t>(part.count)},
                       begin, checkpoint->nbytes});
  }
  checkpoint->header = checkpoint::write_header(tensors);

  // New memory costs several times the copy, so it is kept. After a timeout a disk may still read it.
  if (snapshot_.use_count() != 1 || snapshot_nbytes_ != checkpoint->nbytes) {
    device::Device& staging = *state_.step.contexts().back().device;
    DSGD_RETURN_IF_ERROR(staging.allocate_staging(checkpoint->nbytes).into(&snapshot_));
    snapshot_nbytes_ = checkpoint->nbytes;
  }
  checkpoint->data = snapshot_;
  DeviceContext& context = state_.step.context_of(0);
  DSGD_RETURN_IF_ERROR(context.follow_default_stream());
  for (size_t i = 0; i < parts.size(); ++i) {
    const SavedPart& part = parts[i];
    const size_t begin = part.begin * dtype_size(dtype_of(part)), nbytes = tensors[i].end - tensors[i].begin;
    std::byte* const to = static_cast<std::byte*>(checkpoint->data.get()) + tensors[i].begin;
    const bool state_on_host = at_owner || context.is_host();
    const auto& state = state_on_host ? state_.step.optimizer_state().on_host() : context.state;
    const std::byte* const from =
        (part.state < 0
             ? state_.model.bindings[0][part.parameter].value
             : static_cast<const std::byte*>(state[part.parameter][static_cast<size_t>(part.state)].get())) +
        begin;
    if (nbytes == 0) continue;
    if (context.is_host() || (part.state >= 0 && state_on_host)) {
      std::memcpy(to, from, nbytes);
    } else {
      DSGD_RETURN_IF_ERROR(context.queue->copy(to, from, nbytes));
    }
  }
  return {};
}

void Checkpoints::prepare_folder(const SharedCall& checkpoint) {
  const auto prepared = [this, checkpoint](const Status& status) {
    checkpoint->mine.failure = status;
    exchange_reports(checkpoint, [this, checkpoint](const Reports& reports) {
      const uint64_t first = reports[0].step;
      const Status differs = first_error(reports, checkpoint->kind, [first](const auto& one) {
        if (one.step == first) return Status();
        return Status(Code::kMismatch, "it saves after " + std::to_string(one.step) +
                                           " steps, but rank 0 after " + std::to_string(first) +
                                           "; all workers call dsgd_checkpoint_save between the same steps");
      });
      if (!differs.ok()) return queue_.end(checkpoint, differs);
      if (state_.rank() == 0) note_data_shards(reports, checkpoint->ledgers, &checkpoint->manifest);
      write_file(checkpoint);
    });
  };
  if (state_.rank() != 0 || !checkpoint->mine.failure.ok()) return prepared(checkpoint->mine.failure);
  queue_.on_files(
      checkpoint,
      [files = queue_.files(), folder = checkpoint->folder, draft = checkpoint->draft] {
        return Store(*files, folder).prepare(draft);
      },
      prepared);
}

// Keeps rank 0's data shards that all workers have, in the same pass.
void Checkpoints::note_data_shards(const Reports& reports, const std::vector<SampleLedger>& ledgers,
                                   Manifest* manifest) const {
  const std::vector<uint64_t>& workers = state_.shards->roster()->workers;
  for (const SampleLedger& ledger : ledgers) {
    Manifest::Shard shard{ledger.samples, ledger.seed, ledger.epoch, ledger.tail, ledger.shuffle, {}, {}};
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      const auto& drawn = reports[rank].drawn.shards;
      const auto same = std::find_if(drawn.begin(), drawn.end(), [&](const auto& other) {
        return other.number == ledger.number && other.pass == ledger.pass && other.epoch == ledger.epoch &&
               other.begin == ledger.begin;
      });
      const SampleLedger::Part* part = find_part(ledger, workers[rank]);
      if (same == drawn.end() || !part || part->slot != rank || ledger.slots != reports.size()) break;
      SampleLedger::Part rest = rest_of(ledger, *part, same->count);
      shard.drawn.push_back(rest.taken);
      shard.runs.push_back(std::move(rest.runs));
    }
    if (shard.drawn.size() == reports.size()) manifest->shards.push_back(std::move(shard));
  }
}

void Checkpoints::write_file(const SharedCall& checkpoint) {
  const auto file = std::make_shared<Manifest::File>();
  queue_.on_files(
      checkpoint,
      [files = queue_.files(), folder = checkpoint->folder, draft = checkpoint->draft, file,
       name = checkpoint::file_name(state_.rank(), state_.size()), header = std::move(checkpoint->header),
       data = std::move(checkpoint->data), nbytes = checkpoint->nbytes] {
        const std::span<const std::byte> parts[] = {std::as_bytes(std::span(header)),
                                                    {static_cast<const std::byte*>(data.get()), nbytes}};
        auto written = Store(*files, folder).write_file(draft, name, parts);
        if (written.ok()) *file = std::move(written).value();
        return written.status();
      },
      [this, checkpoint, file](const Status& status) {
        checkpoint->mine.failure = status;
        checkpoint->mine.drawn = {};
        if (status.ok()) checkpoint->mine.nbytes = file->nbytes, checkpoint->mine.checksum = file->checksum;
        exchange_reports(checkpoint,
                         [this, checkpoint](const Reports& reports) { publish(checkpoint, reports); });
      });
}

void Checkpoints::publish(const SharedCall& checkpoint, const Reports& reports) {
  const auto retained = std::make_shared<Status>();
  const auto published = [this, checkpoint, retained](const Status& status) {
    if (status.ok() && !retained->ok())
      state_.log->warning("an old checkpoint was not removed: " + retained->message());
    checkpoint->mine.failure = status;
    exchange_reports(checkpoint, [this, checkpoint](const Reports&) {
      if (state_.rank() == 0)
        state_.log->info("saved the checkpoint '" +
                         Store(*queue_.files(), checkpoint->folder).path(checkpoint->manifest.step) + "'");
      queue_.end(checkpoint, {});
    });
  };
  if (state_.rank() != 0) return published({});
  for (int32_t rank = 0; rank < state_.size(); ++rank) {
    const CheckpointReport& report = reports[static_cast<size_t>(rank)];
    checkpoint->manifest.files.push_back(
        {checkpoint::file_name(rank, state_.size()), report.nbytes, report.checksum});
  }
  queue_.on_files(
      checkpoint,
      [files = queue_.files(), folder = checkpoint->folder, draft = checkpoint->draft,
       manifest = checkpoint->manifest, retained, keep = state_.options.checkpoint_keep] {
        Store store(*files, folder);
        Status status = store.publish(draft, manifest);
        if (status.ok()) *retained = store.retain(keep, manifest.step);
        return status;
      },
      published);
}

}  // namespace dsgd

// Checkpoints and the data shards that they remember.

#include "core/mesh/channels.h"
#include "core/session/session_impl.h"

namespace dsgd {

std::shared_ptr<SharedShard> Session::add_shard(uint64_t samples, uint64_t seed, bool shuffle) {
  return impl_->shards.add(samples, seed, shuffle);
}

Status Session::wait_for_samples(const SharedShard& shard) {
  Impl::HostCall call(*impl_, Impl::HostCall::kAlways);
  if (!call.status().ok()) return call.status();
  if (impl_->shards.waits_for_others()) {
    return Status(Code::kState,
                  "this worker has joined a running job, and its samples are dealt in dsgd_start; call "
                  "dsgd_start before dsgd_shard_next");
  }
  return impl_->loop().wait(shard.ready(), transport::kNever) ? Status() : impl_->environment->alive();
}

Result<std::string> Session::Impl::checkpoint_folder(const char* call, const std::string& path) {
  if (!started) return Status(Code::kState, std::string(call) + " needs dsgd_start first");
  DSGD_RETURN_IF_ERROR(check_model_writable(call));
  const std::string& folder = path.empty() ? config.text("checkpoint_dir") : path;
  if (!folder.empty()) return folder;
  return Status(Code::kInvalidArgument,
                std::string(call) + ": no folder is given; pass one, or set the key checkpoint_dir")
      .with_parameter("checkpoint_dir");
}

Result<std::shared_ptr<Operation>> Session::save_checkpoint(const std::string& path, Mode mode,
                                                            const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  const auto folder = impl_->checkpoint_folder("dsgd_checkpoint_save", path);
  if (!folder.ok()) return folder.status();
  const auto operation = impl_->new_operation("dsgd_checkpoint_save", options);
  impl_->launch_call(operation, mode, kCheckpointChannel,
                     [this, operation, options, folder = folder.value()](auto done) {
                       impl_->engine().checkpoints().save(
                           folder, [operation] { operation->set_model_copied(); }, done, options);
                     });
  std::lock_guard lock(impl_->step_mutex);
  impl_->last_save = operation;
  return operation;
}

// An earlier save may still be under way, so the model is copied later.
void Session::wait_until_copied(const Operation& save) {
  Impl::HostCall call(*impl_, Impl::HostCall::kAlways);
  if (call.status().ok()) impl_->loop().wait(save.model_copied(), transport::kNever);
}

Result<std::shared_ptr<Operation>> Session::load_checkpoint(const std::string& path, Mode mode,
                                                            const CallOptions& options) {
  Impl::HostCall call(*impl_);
  if (!call.status().ok()) return call.status();
  const auto folder = impl_->checkpoint_folder("dsgd_checkpoint_load", path);
  if (!folder.ok()) return folder.status();
  CallOptions of_channel = options;  // where dsgd_op_wait looks for what the call waits for
  of_channel.channel = kCheckpointChannel;
  return impl_->launch_change(
      "dsgd_checkpoint_load", mode, of_channel,
      [folder = folder.value(), options](Engine& engine, auto done) {
        engine.checkpoints().load(folder, done, options);
      },
      [this] {
        std::lock_guard lock(impl_->step_mutex);
        impl_->next_step = static_cast<int64_t>(impl_->engine().next_step());
        impl_->torn = false;
        impl_->step_failure = {};
        impl_->step_begun = false;
        impl_->marks().clear(true);
      });
}

}  // namespace dsgd

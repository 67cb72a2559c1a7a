#include "core/session/signature.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base/text.h"

namespace dsgd {

std::string describe_settings(const EngineOptions& options, const Model& model, const std::string& strategy,
                              bool with_rate, size_t chunk_bytes) {
  std::string text = "library " + options.library_version + "\n";
  text += "fingerprint = " + options.fingerprint + '\n';
  for (size_t p = 0; p < model.parameters.size(); ++p) {
    const Parameter& parameter = *model.parameters[p];
    text += "parameter " + parameter.name + ' ' + dtype_name(parameter.dtype) + ' ' +
            shape_text(parameter.shape) + (parameter.trained ? " trained " : " untrained ") +
            model.settings[p].describe() + '\n';
  }
  text += "no further parameter\n";
  text += "optimizer " +
          (with_rate ? model.optimizer->describe()
                     : model.optimizer->name() + ' ' + model.optimizer->settings()) +
          '\n';
  text += "strategy " + strategy + '\n';
  text += std::string("reproducible = ") + (options.step.reproducible ? "1" : "0") + '\n';
  text += "bucket_size = " +
          (options.bucket_bytes ? std::to_string(options.bucket_bytes) : std::string("not set")) + '\n';
  text += "algorithm = " + options.algorithm->name + '\n';
  text += std::string("internode = ") + (options.internode_nccl ? "nccl" : "rpc") + '\n';
  text += std::string("views change = ") + (options.views_change ? "1" : "0") + '\n';
  text += "servers = " + std::to_string(options.servers) + '\n';
  text += std::string("gradient_norm = ") + (options.step.gradient_norm ? "1" : "0") + '\n';
  text += std::string("early_update = ") + (options.step.early_update ? "1" : "0") + '\n';
  for (const auto& [name, dtype] : kWireTypes) {
    if (options.step.wire == dtype) text += std::string("wire = ") + name + '\n';
  }
  text += "checkpoint_interval = " + std::to_string(options.checkpoint_interval) + '\n';
  text += "loss_scale = " + model.loss_scale.text() + '\n';
  text += std::string("nonfinite = ") + kNonFiniteActions[static_cast<size_t>(options.step.nonfinite)] + '\n';
  text += std::string("absent = ") + (options.step.absent_is_zero ? "zero" : "skip") + '\n';
  if (chunk_bytes > 0) text += "receive_memory gives chunks of " + std::to_string(chunk_bytes) + " bytes\n";
  return text;
}

std::string describe_plan(const Result<Plan>& plan, const StrategySpec& strategy) {
  return plan.ok() ? plan.value().describe()
                   : strategy.describe() + " cannot be used: " + plan.status().message().substr(0, 1000);
}

uint64_t digest_of(const std::string& signature) { return XXH3_64bits(signature.data(), signature.size()); }

Status signature_mismatch(const std::string& difference, int32_t rank) {
  std::string parameter;
  if (const size_t at = difference.find("'parameter "); at != std::string::npos)
    parameter = difference.substr(at + 11, difference.find(' ', at + 11) - at - 11);
  const bool versions = difference.find("'fingerprint = ") != std::string::npos;
  const std::string remedy = versions
                                 ? "run the same versions on all workers, or set the same `fingerprint`"
                                 : "register the same parameters in the same order and set the same options "
                                   "on all workers";
  return Status(Code::kMismatch, "dsgd_start: workers disagree: " + difference + "; " + remedy)
      .with_rank(rank)
      .with_operation("dsgd_start")
      .with_parameter(parameter);
}

}  // namespace dsgd

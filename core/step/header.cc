#include "core/step/header.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/config/config.h"
#include "core/reduce/exact_sum.h"
#include "core/step/divergence.h"
#include "transport/schema/codec.h"

namespace dsgd {
namespace {

std::string hex(uint64_t value) {
  char text[17];
  for (int i = 15; i >= 0; --i, value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  text[16] = 0;
  return text;
}

uint64_t settings_digest(const Model& model) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  const std::string optimizer = model.optimizer->describe();
  XXH3_64bits_update(state, optimizer.data(), optimizer.size());
  for (const ParameterSettings& setting : model.settings) {
    const double numbers[3] = {setting.rate, setting.decay, setting.frozen ? 1.0 : 0.0};
    const uint64_t sync[2] = {static_cast<uint64_t>(setting.sync), setting.sync_period};
    XXH3_64bits_update(state, numbers, sizeof numbers);
    XXH3_64bits_update(state, sync, sizeof sync);
  }
  const uint64_t digest = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return digest;
}

}  // namespace

// The settings of all parameters if they fit into one message; else of those that differ from the default.
// Whether they fit depends only on names, so all workers give the same kind of text.
std::string settings_text(const Model& model) {
  constexpr size_t kOptimizerText = 1000, kSettingsText = 100;
  size_t room = kOptimizerText;
  for (const auto& parameter : model.parameters) room += parameter->name.size() + kSettingsText;
  const std::string usual = ParameterSettings().describe();
  std::string mine = model.optimizer->describe() + '\n';
  for (size_t p = 0; p < model.parameters.size(); ++p) {
    const std::string settings = model.settings[p].describe();
    if (room > transport::kSmallBytes && settings == usual) continue;
    mine += "parameter " + model.parameters[p]->name + ' ' + settings + '\n';
  }
  mine.resize(std::min(mine.size(), transport::kSmallBytes));
  return mine;
}

Status settings_difference(const std::string& step, const Group& group,
                           const std::vector<std::vector<std::byte>>& texts) {
  for (size_t index = 1; index < texts.size(); ++index) {
    const int32_t rank = group.ranks[index];
    const std::string difference =
        first_difference(text_of(texts[0]), text_of(texts[index]), rank, group.ranks[0]);
    if (difference.empty()) continue;
    return Status(Code::kMismatch, step + ": workers disagree on settings: " + difference +
                                       "; call dsgd_parameter_set alike on all workers")
        .with_rank(rank)
        .with_operation(step);
  }
  return Status(
             Code::kMismatch,
             step +
                 ": workers disagree on settings of parameters; call dsgd_parameter_set alike on all workers")
      .with_operation(step);
}

std::vector<std::byte> make_header(const StepState& state, const HeaderDigests& digests) {
  return transport::encode(transport::StepHeader{
      state.request.step, digests.strategy_version, settings_digest(state.model), digests.plan,
      digests.values, state.model.optimizer->learning_rate(), state.model.loss_scale.factor(),
      state.request.stop, state.request.weights, state.request.drawn});
}

HeaderVerdict read_headers(StepState* state, const Group* group,
                           const std::vector<std::vector<std::byte>>& headers) {
  WeightDigits weights{};
  state->contributing_replicas = 0;
  state->drawn.clear();
  state->result.stop = false;
  transport::StepHeader first;
  const std::string operation = state->name();
  const size_t first_rank = group ? static_cast<size_t>(group->ranks.front()) : 0;
  for (size_t rank = first_rank; rank < headers.size(); ++rank) {
    if (group && group->index_of(static_cast<int32_t>(rank)) < 0) continue;
    const auto invalid = [&](const std::string& why) -> HeaderVerdict {
      return invalid_data(operation, static_cast<int32_t>(rank), "an invalid step header: " + why);
    };
    const Result<transport::StepHeader> decoded = transport::decode_step_header(headers[rank]);
    if (!decoded.ok()) return invalid(decoded.status().message());
    const transport::StepHeader& header = decoded.value();
    if (rank == first_rank) first = header;
    const auto differs = [&](const std::string& what, const std::string& zero, const std::string& here,
                             const std::string& remedy) -> HeaderVerdict {
      return Status(Code::kMismatch, operation + ": workers disagree on " + what + ": rank " +
                                         std::to_string(first_rank) + " has " + zero + ", rank " +
                                         std::to_string(rank) + " has " + here + "; " + remedy)
          .with_rank(static_cast<int32_t>(rank))
          .with_operation(operation);
    };
    if (header.step != first.step) {
      return differs("the step's index", std::to_string(first.step), std::to_string(header.step),
                     "all workers must make the same number of steps");
    }
    if (header.strategy_version != first.strategy_version) {
      return differs("the number of strategy changes and loaded checkpoints",
                     std::to_string(first.strategy_version), std::to_string(header.strategy_version),
                     "dsgd_strategy_set and dsgd_checkpoint_load are called by all workers between the same "
                     "steps");
    }
    if (std::memcmp(&header.learning_rate, &first.learning_rate, sizeof header.learning_rate) != 0) {
      return differs("the learning rate", number_text(first.learning_rate), number_text(header.learning_rate),
                     "set the same rate on all workers, also in steps of workers that have no data left "
                     "(dsgd.torch: join(update))");
    }
    if (header.loss_scale != first.loss_scale) {
      return differs("the loss scale", number_text(first.loss_scale), number_text(header.loss_scale),
                     "all workers compute it from the same results, so this is a defect of dsgd");
    }
    if (header.settings != first.settings)
      return {Status(Code::kMismatch, "settings differ"), HeaderVerdict::Difference::kSettings};
    if (header.plan != first.plan) {
      return differs("the layout and the owners of the parameters (digest)", hex(first.plan),
                     hex(header.plan),
                     "the functions of a plug-in must give the same answers on all workers");
    }
    if (header.values != first.values) {
      const std::string what =
          "values of rank " + std::to_string(rank) + " against rank " + std::to_string(first_rank);
      return {diverged(operation, what).with_rank(static_cast<int32_t>(rank)),
              HeaderVerdict::Difference::kValues};
    }
    state->result.stop = state->result.stop || header.stop;
    if (header.drawn.made > 0) state->drawn[static_cast<int32_t>(rank)] = header.drawn;
    for (const double weight : header.weights) {
      if (!(weight == 0 || (weight >= kWeightLeast && weight < kWeightLimit)))
        return invalid("weight " + number_text(weight));
      add_weight(weights, weight);
      state->contributing_replicas += weight > 0;
    }
  }
  // Exact, so that it does not depend on which worker has which replica.
  state->total_weight = weight_of(weights);
  state->result.weight = state->total_weight;
  // After a loss, workers may still receive samples of the lost worker, so the first step of a view is not
  // the last one of the epoch.
  state->result.all_done =
      state->contributing_replicas == 0 && state->result.view == state->request.previous_view;
  return {};
}

}  // namespace dsgd

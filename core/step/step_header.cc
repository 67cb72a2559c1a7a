// The step's header: what all workers must agree on before anything changes, and the weights that the mean
// needs.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <cstring>

#include "core/base/text.h"
#include "core/config/config.h"
#include "core/reduce/exact_sum.h"
#include "core/reduce/kernels.h"
#include "core/step/divergence.h"
#include "core/step/step.h"

namespace dsgd {
namespace {

struct HeaderWire {  // little-endian, as all machines that dsgd runs on
  uint64_t step, version, settings, plan, values;
  double rate, loss_scale;
  uint32_t stop, replicas;
};

std::string hex(uint64_t value) {
  char text[17];
  for (int i = 15; i >= 0; --i, value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  text[16] = 0;
  return text;
}

}  // namespace

uint64_t Step::settings_digest() const {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  const std::string optimizer = model_.optimizer->describe();
  XXH3_64bits_update(state, optimizer.data(), optimizer.size());
  for (const ParameterSettings& setting : model_.settings) {
    const double numbers[3] = {setting.rate, setting.decay, setting.frozen ? 1.0 : 0.0};
    const uint64_t sync[2] = {static_cast<uint64_t>(setting.sync), setting.sync_period};
    XXH3_64bits_update(state, numbers, sizeof numbers);
    XXH3_64bits_update(state, sync, sizeof sync);
  }
  const uint64_t digest = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return digest;
}

// The settings are too long for each step's header, which has their digest. After a difference they are
// exchanged.
void Step::compare_settings() {
  // All settings, where they fit, which is the same on all workers; else the unusual ones.
  constexpr size_t kOptimizerText = 1000, kSettingsText = 100;
  size_t room = kOptimizerText;
  for (const auto& parameter : model_.parameters) room += parameter->name.size() + kSettingsText;
  const std::string usual = ParameterSettings().describe();
  std::string mine = model_.optimizer->describe() + '\n';
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    const std::string settings = model_.settings[p].describe();
    if (room > transport::kSmallBytes && settings == usual) continue;
    mine += "parameter " + model_.parameters[p]->name + ' ' + settings + '\n';
  }
  mine.resize(std::min(mine.size(), transport::kSmallBytes));
  exchange(
      shape_of(norms_operation(), Kind::kHeader, DType::kUint8, Algorithm::kOneHop, 0), bytes_of(mine),
      [this](const Status& status, const auto& all) {
        if (!done_) return;
        if (!status.ok()) return fail(status);
        const std::string operation = name();
        for (size_t place = 1; place < all.size(); ++place) {
          const int32_t rank = group_->ranks[place];
          const std::string difference =
              first_difference(text_of(all[0]), text_of(all[place]), rank, group_->ranks[0]);
          if (difference.empty()) continue;
          return fail(Status(Code::kMismatch, operation + ": workers disagree on settings: " + difference +
                                                  "; call dsgd_parameter_set alike on all workers")
                          .with_rank(rank)
                          .with_operation(operation));
        }
        fail(Status(Code::kMismatch,
                    operation +
                        ": workers disagree on settings of parameters; call dsgd_parameter_set alike on "
                        "all workers")
                 .with_operation(operation));
      });
}

std::vector<std::byte> Step::make_header() const {
  const uint32_t replicas = static_cast<uint32_t>(request_.weights.size());
  const HeaderWire wire{request_.step,
                        version_,
                        settings_digest(),
                        plan_digest_,
                        mesh_ ? value_digest() : 0,
                        model_.optimizer->learning_rate(),
                        model_.loss_scale.factor(),
                        request_.stop,
                        replicas};
  std::vector<std::byte> bytes(sizeof wire + replicas * sizeof(double));
  std::memcpy(bytes.data(), &wire, sizeof wire);
  if (replicas) std::memcpy(bytes.data() + sizeof wire, request_.weights.data(), replicas * sizeof(double));
  return bytes;
}

Status Step::read_headers(const std::vector<std::vector<std::byte>>& headers) {
  WeightDigits weights{};
  positive_ = 0;
  result_.stop = settings_differ_ = values_differ_ = false;
  HeaderWire first{};
  const std::string operation = name();
  const size_t first_rank = group_ ? static_cast<size_t>(group_->ranks.front()) : 0;
  for (size_t rank = first_rank; rank < headers.size(); ++rank) {
    if (group_ && group_->place_of(static_cast<int32_t>(rank)) < 0) continue;
    HeaderWire wire;
    if (headers[rank].size() < sizeof wire) {
      return Status(Code::kInternal, "rank " + std::to_string(rank) + " sent a step header of " +
                                         std::to_string(headers[rank].size()) + " bytes")
          .with_rank(static_cast<int32_t>(rank))
          .with_operation(operation);
    }
    std::memcpy(&wire, headers[rank].data(), sizeof wire);
    if (rank == first_rank) first = wire;
    auto differs = [&](const std::string& what, const std::string& zero, const std::string& here,
                       const std::string& remedy) {
      return Status(Code::kMismatch, operation + ": workers disagree on " + what + ": rank " +
                                         std::to_string(first_rank) + " has " + zero + ", rank " +
                                         std::to_string(rank) + " has " + here + "; " + remedy)
          .with_rank(static_cast<int32_t>(rank))
          .with_operation(operation);
    };
    if (wire.step != first.step) {
      return differs("the step's index", std::to_string(first.step), std::to_string(wire.step),
                     "all workers must make the same number of steps");
    }
    if (wire.version != first.version) {
      return differs("the number of strategy changes", std::to_string(first.version),
                     std::to_string(wire.version),
                     "dsgd_strategy_set is called by all workers between the same steps");
    }
    if (std::memcmp(&wire.rate, &first.rate, sizeof wire.rate) != 0) {
      return differs("the learning rate", number_text(first.rate), number_text(wire.rate),
                     "set the same rate on all workers");
    }
    if (wire.loss_scale != first.loss_scale) {
      return differs("the loss scale", number_text(first.loss_scale), number_text(wire.loss_scale),
                     "all workers compute it from the same results, so this is a defect of dsgd");
    }
    settings_differ_ = wire.settings != first.settings;
    // compare_settings() names the setting.
    if (settings_differ_) return Status(Code::kMismatch, "settings differ");
    if (wire.plan != first.plan) {
      return differs("how the parameters are laid out and who owns what (digest)", hex(first.plan),
                     hex(wire.plan), "the functions of a plug-in must give the same answers on all workers");
    }
    if (wire.values != first.values) {
      values_differ_ = true;
      return diverged(operation, "values of rank " + std::to_string(rank) + " against rank " +
                                     std::to_string(first_rank))
          .with_rank(static_cast<int32_t>(rank));
    }
    if (headers[rank].size() != sizeof wire + wire.replicas * sizeof(double)) {
      return Status(Code::kInternal, "rank " + std::to_string(rank) + " sent a malformed step header")
          .with_rank(static_cast<int32_t>(rank))
          .with_operation(operation);
    }
    result_.stop = result_.stop || wire.stop;
    for (uint32_t r = 0; r < wire.replicas; ++r) {
      double weight;
      std::memcpy(&weight, headers[rank].data() + sizeof wire + r * sizeof weight, sizeof weight);
      if (!(weight == 0 || (weight >= kWeightLeast && weight < kWeightLimit))) {
        return Status(Code::kInternal, "rank " + std::to_string(rank) +
                                           " sent an invalid weight in its step header; all workers must "
                                           "run the same version of dsgd")
            .with_rank(static_cast<int32_t>(rank))
            .with_operation(operation);
      }
      add_weight(weights, weight);
      positive_ += weight > 0;
    }
  }
  total_weight_ = weight_of(weights);  // exact, so that it does not depend on which worker has which replica
  result_.weight = total_weight_;
  result_.all_done = positive_ == 0;
  return {};
}

}  // namespace dsgd

#include "core/strategy/strategies.h"

#include <algorithm>

#include "core/config/config.h"

namespace dsgd {
namespace {

// "; did you mean 'ps'? There are simple, ps, ..."
std::string did_you_mean(const std::string& name, const std::vector<std::string>& names) {
  const std::string near = nearest_name(name, names);
  std::string text = near.empty() ? "; there are " : "; did you mean '" + near + "'? There are ";
  for (size_t i = 0; i < names.size(); ++i) text += (i ? ", " : "") + names[i];
  return text;
}

}  // namespace

std::string StrategySpec::describe() const {
  if (registered) {
    return name + (registered->update_at_owner ? " update_at_owner" : " mean_at_owner") +
           (options.empty() ? "" : " " + options);
  }
  switch (kind) {
    case StrategyKind::kSimple:
      return "simple";
    case StrategyKind::kPs:
      return "ps";
    case StrategyKind::kAllReduce:
      return "allreduce algorithm=" + algorithm.name;
  }
  return "";
}

Strategies::Strategies(const Registered& registered) : strategies_(registered.strategies) {
  for (const auto& [name, write] : registered.algorithms) {
    algorithms_[name] = std::make_shared<ScheduleAlgorithm>(name, write);
  }
}

std::vector<std::string> Strategies::built_in() {
  return {"simple", "ps", "allreduce", "mirrored", "multi_worker_mirrored"};
}
std::vector<std::string> Strategies::built_in_algorithms() { return {"auto", "direct", "nccl", "ring"}; }

std::vector<std::string> Strategies::algorithm_names() const {
  std::vector<std::string> names = built_in_algorithms();
  for (const auto& [registered, algorithm] : algorithms_) names.push_back(registered);
  return names;
}

Result<AlgorithmChoice> Strategies::algorithm(const std::string& name) const {
  if (const auto found = algorithms_.find(name); found != algorithms_.end())
    return AlgorithmChoice{name, found->second};
  const std::vector<std::string> names = algorithm_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return AlgorithmChoice{name, nullptr};
  return Status(Code::kInvalidArgument, "there is no algorithm '" + name + "'" + did_you_mean(name, names));
}

Result<StrategySpec> Strategies::parse(const std::string& name, const std::string& options,
                                       const std::string& default_algorithm) const {
  StrategySpec spec;
  if (const auto found = strategies_.find(name); found != strategies_.end()) {
    constexpr size_t kLongestOptions = 4096;
    if (options.size() > kLongestOptions) {
      return Status(Code::kInvalidArgument, "the options of strategy '" + name + "' have " +
                                                std::to_string(options.size()) + " bytes; at most " +
                                                std::to_string(kLongestOptions) + " are possible");
    }
    spec.kind = found->second->update_at_owner ? StrategyKind::kPs : StrategyKind::kSimple;
    spec.name = name;
    spec.options = options;
    spec.registered = found->second;
    return spec;
  }
  if (name == "simple") {
    spec.kind = StrategyKind::kSimple;
  } else if (name == "ps") {
    spec.kind = StrategyKind::kPs;
  } else if (name == "allreduce" || name == "mirrored" || name == "multi_worker_mirrored") {
    spec.kind = StrategyKind::kAllReduce;
  } else {
    std::vector<std::string> names = built_in();
    for (const auto& [registered, strategy] : strategies_) names.push_back(registered);
    return Status(Code::kInvalidArgument, "there is no strategy '" + name + "'" + did_you_mean(name, names));
  }
  auto words = Options::parse(options, "strategy '" + name + "'");
  if (!words.ok()) return words.status();
  std::string algorithm = default_algorithm;
  if (spec.kind == StrategyKind::kAllReduce) {
    words->choice("algorithm", &algorithm, algorithm_names());
  }
  Status status = words->finish();
  if (!status.ok()) return status;
  if (spec.kind != StrategyKind::kAllReduce) return spec;
  auto choice = this->algorithm(algorithm);
  if (!choice.ok()) return choice.status();
  spec.algorithm = choice.value();
  return spec;
}

}  // namespace dsgd

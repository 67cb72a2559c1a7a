#include "core/strategy/strategies.h"

#include <algorithm>

#include "core/config/config.h"
#include "core/strategy/allreduce.h"
#include "core/strategy/ps.h"
#include "core/strategy/simple.h"

namespace dsgd {
namespace {

// "; did you mean 'ps'? There are simple, ps, ..."
std::string suggestion(const std::string& name, const std::vector<std::string>& names) {
  const std::string near = nearest_name(name, names);
  std::string text = near.empty() ? "; there are " : "; did you mean '" + near + "'? There are ";
  for (size_t i = 0; i < names.size(); ++i) text += (i ? ", " : "") + names[i];
  return text;
}

const std::vector<std::shared_ptr<const Strategy>>& table() {
  static const auto* const kTable = new std::vector<std::shared_ptr<const Strategy>>([] {
    std::vector<std::shared_ptr<const Strategy>> rows;
    for (Strategy row : {
             Strategy{"simple", {}, simple_traits()},
             Strategy{"ps", {}, ps_traits()},
             Strategy{"allreduce", {"mirrored", "multi_worker_mirrored"}, allreduce_traits()},
         }) {
      rows.push_back(std::make_shared<const Strategy>(std::move(row)));
    }
    return rows;
  }());
  return *kTable;
}

bool has_name(const Strategy& strategy, const std::string& name) {
  const auto& aliases = strategy.aliases;
  return strategy.name == name || std::find(aliases.begin(), aliases.end(), name) != aliases.end();
}

std::vector<std::string> names_of(const std::vector<std::shared_ptr<const Strategy>>& strategies) {
  std::vector<std::string> names;
  for (const auto& strategy : strategies) {
    names.push_back(strategy->name);
    names.insert(names.end(), strategy->aliases.begin(), strategy->aliases.end());
  }
  return names;
}

std::vector<std::string> names_of(const std::vector<AlgorithmChoice>& algorithms) {
  std::vector<std::string> names;
  for (const AlgorithmChoice& algorithm : algorithms) names.push_back(algorithm->name);
  return names;
}

}  // namespace

StrategySpec::StrategySpec()
    : strategy(*std::find_if(table().begin(), table().end(),
                             [](const auto& row) { return row->name == "allreduce"; })) {}

std::string StrategySpec::describe() const {
  std::string text = name();
  if (strategy->registered) text += traits().owner_updates() ? " update_at_owner" : " mean_at_owner";
  if (traits().takes_algorithm) text += " algorithm=" + algorithm->name;
  if (copies > 1) text += " copies=" + std::to_string(copies);
  return text + (options.empty() ? "" : " " + options);
}

Strategies::Strategies(const Registered& registered)
    : strategies_(table()), algorithms_(built_in_all_reduces()) {
  for (const auto& [name, strategy] : registered.strategies) {
    strategies_.push_back(
        std::make_shared<const Strategy>(Strategy{name, {}, registered_traits(strategy), true}));
  }
  for (const auto& [name, write] : registered.algorithms)
    algorithms_.push_back(registered_all_reduce(name, write));
}

std::vector<std::string> Strategies::built_in() { return names_of(table()); }
std::vector<std::string> Strategies::built_in_algorithms() { return names_of(built_in_all_reduces()); }

Result<AlgorithmChoice> Strategies::algorithm(const std::string& name) const {
  for (const AlgorithmChoice& algorithm : algorithms_) {
    if (algorithm->name == name) return algorithm;
  }
  return Status(Code::kInvalidArgument,
                "there is no algorithm '" + name + "'" + suggestion(name, names_of(algorithms_)));
}

Result<StrategySpec> Strategies::parse(const std::string& name, const std::string& options,
                                       const std::string& default_algorithm, int32_t default_copies) const {
  const auto found = std::find_if(strategies_.begin(), strategies_.end(),
                                  [&](const auto& strategy) { return has_name(*strategy, name); });
  if (found == strategies_.end()) {
    return Status(Code::kInvalidArgument,
                  "there is no strategy '" + name + "'" + suggestion(name, names_of(strategies_)));
  }
  StrategySpec spec;
  spec.strategy = *found;
  if (spec.strategy->registered) {
    constexpr size_t kLongestOptions = 4096;
    if (options.size() > kLongestOptions) {
      return Status(Code::kInvalidArgument, "the options of strategy '" + name + "' have " +
                                                std::to_string(options.size()) + " bytes; at most " +
                                                std::to_string(kLongestOptions) + " are possible");
    }
    spec.options = options;
    return spec;
  }
  auto words = Options::parse(options, "strategy '" + name + "'");
  if (!words.ok()) return words.status();
  std::string algorithm = default_algorithm;
  if (spec.traits().takes_algorithm) words->choice("algorithm", &algorithm, names_of(algorithms_));
  if (spec.traits().takes_copies) {
    spec.copies = default_copies;
    words->integer("copies", &spec.copies, 1, kMaxCopies);
  }
  DSGD_RETURN_IF_ERROR(words->finish());
  if (spec.traits().takes_algorithm) DSGD_RETURN_IF_ERROR(this->algorithm(algorithm).into(&spec.algorithm));
  return spec;
}

}  // namespace dsgd

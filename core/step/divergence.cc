#include "core/step/divergence.h"

#include <algorithm>
#include <cstring>

#include "core/base/mix.h"
#include "core/base/text.h"
#include "transport/network.h"

namespace dsgd {
namespace {

// They are exchanged in one small message, whose framing needs some room.
constexpr size_t kMaxDigests = transport::kSmallBytes / sizeof(uint64_t) - 8;

std::vector<const Parameter*> trained(const Model& model) {
  std::vector<const Parameter*> parameters;
  for (const auto& parameter : model.parameters) {
    if (parameter->trained) parameters.push_back(parameter.get());
  }
  return parameters;
}

// Returns the index of the digest that covers parameter `index` of `count`.
size_t digest_index(size_t index, size_t count) {
  return count <= kMaxDigests ? index : index * kMaxDigests / count;
}

std::string ranks_text(const std::vector<int32_t>& ranks) {
  constexpr size_t kNamed = 8;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) names.push_back(std::to_string(ranks[i]));
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_text(names, ranks.size());
}

}  // namespace

Status diverged(const std::string& when, const std::string& what, const std::string& remedy) {
  return Status(
             Code::kDiverged,
             when + ": models differ: " + what +
                 "; the host has changed the values on some workers only, or memory or network have changed "
                 "bits. Check that the host's optimizer has the same settings and makes every step on all "
                 "workers, and that the function given to join() does all that the training loop does. " +
                 "Then " + remedy)
      .with_operation(when);
}

std::vector<uint64_t> fold_digests(const std::vector<uint64_t>& by_parameter) {
  if (by_parameter.size() <= kMaxDigests) return by_parameter;
  const size_t count = by_parameter.size();
  std::vector<uint64_t> folded(kMaxDigests, 0);
  for (size_t i = 0; i < count; ++i) {
    uint64_t& digest = folded[digest_index(i, count)];
    digest = finalize64(digest ^ by_parameter[i]) + i;
  }
  return folded;
}

Status find_divergence(const Model& model, const std::map<int32_t, std::vector<uint64_t>>& digests,
                       const std::string& when) {
  std::map<std::vector<uint64_t>, std::vector<int32_t>> ranks_with;
  for (const auto& [rank, own] : digests) ranks_with[own].push_back(rank);
  if (ranks_with.size() <= 1) return {};
  const auto most = std::max_element(ranks_with.begin(), ranks_with.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                              : a.second.front() > b.second.front();
  });
  std::vector<int32_t> others;
  for (const auto& [own, ranks] : ranks_with) {
    if (&own != &most->first) others.insert(others.end(), ranks.begin(), ranks.end());
  }
  std::sort(others.begin(), others.end());
  const std::vector<uint64_t>& good = most->first;
  const std::vector<uint64_t>& bad = digests.at(others.front());
  const auto [here, there] = std::mismatch(good.begin(), good.end(), bad.begin(), bad.end());
  const std::vector<const Parameter*> parameters = trained(model);
  size_t first = 0;
  while (first < parameters.size() &&
         digest_index(first, parameters.size()) < static_cast<size_t>(here - good.begin()))
    ++first;
  if (good.size() != bad.size() || first == parameters.size()) {
    return diverged(when, "values of " + ranks_text(others) + " against " + ranks_text(most->second))
        .with_rank(others.front());
  }
  size_t differing = 0;
  for (size_t i = 0; i < good.size(); ++i) differing += good[i] != bad[i];
  const std::string& name = parameters[first]->name;
  const bool folded = parameters.size() > kMaxDigests;
  std::string what = "parameter '" + name + "'" + (folded ? ", or one that follows it," : "") +
                     (differing > 1 ? " and " + std::string(folded ? "at least " : "") +
                                          std::to_string(differing - 1) + " more"
                                    : "") +
                     " of " + ranks_text(others) + " against " + ranks_text(most->second);
  return diverged(when, what).with_rank(others.front()).with_parameter(name);
}

Status compare_replicas(const Model& model, int32_t rank, const std::string& when) {
  for (const Parameter* parameter : trained(model)) {
    const std::byte* first = nullptr;
    size_t first_replica = 0;
    for (size_t r = 0; r < model.replicas.size(); ++r) {
      if (!model.replicas[r]->device->is_host()) continue;
      const std::byte* values = model.bindings[r][parameter->index].value;
      if (!first) {
        first = values;
        first_replica = r;
      } else if (std::memcmp(first, values, parameter->nbytes()) != 0) {
        return diverged(when,
                        "parameter '" + parameter->name + "' of replica " + std::to_string(r) +
                            " against replica " + std::to_string(first_replica) + " of rank " +
                            std::to_string(rank),
                        "start a new session")  // the session fails, since only this worker knows
            .with_rank(rank)
            .with_parameter(parameter->name);
      }
    }
  }
  return {};
}

}  // namespace dsgd

#include "core/session/arguments.h"

#include "core/config/config.h"
#include "transport/base/utf8.h"

namespace dsgd {

namespace {

constexpr double kLeastWeight = 1e-12, kLargestWeight = 1e12;
constexpr size_t kLongestName = 1024;

}  // namespace

Status check_weight(double weight) {
  if (weight == 0 || (weight >= kLeastWeight && weight <= kLargestWeight)) return {};
  return Status(Code::kInvalidArgument,
                "the contribution weight is " + number_text(weight) +
                    "; it must be 0 (no data left) or from 1e-12 to 1e12, usually the number of "
                    "samples. Only the ratios of weights matter: scale them on all workers")
      .with_parameter("weight");
}

Status check_name(const std::string& what, const std::string& name) {
  const std::string subject =
      "the name of a" + std::string(what.find_first_of("aeiou") == 0 ? "n " : " ") + what;
  const auto bad = [&](const std::string& why) { return Status(Code::kInvalidArgument, subject + why); };
  if (name.size() > kLongestName) {
    return bad(" has " + std::to_string(name.size()) + " bytes, at most " + std::to_string(kLongestName) +
               " are possible; shorten it");
  }
  if (auto at = invalid_utf8(name)) {
    return bad(" is not UTF-8 from byte " + std::to_string(*at) + " on; encode it as UTF-8");
  }
  return {};
}

}  // namespace dsgd

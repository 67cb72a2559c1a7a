#include "core/optimizer/optimizer.h"

#include <algorithm>
#include <limits>

#include "core/config/config.h"
#include "core/optimizer/implementations.h"

namespace dsgd {
namespace {

// The host has an optimizer of its own: it gets the mean gradient instead of new values.
class None final : public Optimizer {
 public:
  Status configure(Options& options) override { return options.finish(); }
  std::string name() const override { return "none"; }
  std::string settings() const override { return ""; }
  bool is_none() const override { return true; }
  std::span<const char* const> state_names() const override { return {}; }
  UpdateRule rule(uint64_t, const ParameterSettings&) const override { return {}; }
};

}  // namespace

std::string ParameterSettings::describe() const {
  std::string text = "rate=" + number_text(rate) + (decay >= 0 ? " decay=" + number_text(decay) : "") +
                     " frozen=" + (frozen ? "1" : "0");
  if (sync == UntrainedSync::kNone) return text;
  return text + (sync == UntrainedSync::kMean ? " sync=mean" : " sync=first") +
         " sync_period=" + std::to_string(sync_period);
}

std::string Optimizer::describe() const {
  return is_none() ? name() : name() + " lr=" + number_text(learning_rate_) + ' ' + settings();
}

void Optimizer::read_learning_rate(Options& options) {
  double rate = learning_rate_;
  options.number("lr", &rate, 0, std::numeric_limits<double>::max());
  learning_rate_ = rate;
}

std::string Optimizer::clip_text() const {
  return clip_norm_ > 0 ? " clip_norm=" + number_text(clip_norm_) : "";
}

Result<std::unique_ptr<Optimizer>> Optimizer::make(std::string_view name, std::string_view options) {
  const std::vector<std::string> names = {"sgd", "adam", "adamw", "none"};
  const std::string given(name.substr(0, 80));
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    Result<Options> parsed = Options::parse(options, "optimizer '" + given + "'");
    if (!parsed.ok()) return parsed.status();
    if (name == "none" && options.find("clip_norm=") != options.npos) {
      return Status(Code::kInvalidArgument,
                    "optimizer 'none' does not clip: clip_norm needs sgd, adam or adamw; clip the mean "
                    "gradient in the host's own optimizer")
          .with_parameter("clip_norm");
    }
    std::unique_ptr<Optimizer> optimizer = name == "sgd"    ? make_sgd()
                                           : name == "none" ? std::make_unique<None>()
                                                            : make_adam(name == "adamw");
    DSGD_RETURN_IF_ERROR(optimizer->configure(parsed.value()));
    return optimizer;
  }
  if (given.find_first_of(" ,=") != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "unknown optimizer '" + given +
                      "'; give sgd, adam, adamw or none as the name, and the options separately");
  }
  return Status(Code::kInvalidArgument,
                "unknown optimizer '" + given + "'" +
                    did_you_mean(name, names, "; there are sgd, adam, adamw and none"));
}

}  // namespace dsgd

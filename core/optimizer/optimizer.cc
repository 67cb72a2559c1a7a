#include "core/optimizer/optimizer.h"

#include <cstring>

#include "core/optimizer/implementations.h"

namespace dsgd {
namespace {

// The host has an optimizer of its own: it gets the mean gradient instead of new values.
class None final : public Optimizer {
 public:
  std::string describe() const override { return "none"; }
  bool is_none() const override { return true; }
  int state_count() const override { return 0; }
  void apply(DType dtype, size_t count, uint64_t, const ParameterSettings&, const void*, const void* value_in,
             void* value_out, std::span<const void* const> state_in,
             std::span<void* const> state_out) const override {
    keep(dtype, count, value_in, value_out, state_in, state_out);
  }
};

void copy(void* to, const void* from, size_t nbytes) {
  if (to != from && nbytes > 0) std::memcpy(to, from, nbytes);
}

}  // namespace

void keep(DType dtype, size_t count, const void* value_in, void* value_out,
          std::span<const void* const> state_in, std::span<void* const> state_out) {
  const size_t nbytes = count * dtype_size(dtype);
  copy(value_out, value_in, nbytes);
  for (size_t i = 0; i < state_in.size(); ++i) copy(state_out[i], state_in[i], nbytes);
}

Result<std::unique_ptr<Optimizer>> Optimizer::make(std::string_view name, std::string_view options) {
  const std::vector<std::string> names = {"sgd", "adam", "adamw", "none"};
  const std::string given(name.substr(0, 80));
  Result<Options> parsed = Options::parse(options, "optimizer '" + given + "'");
  if (name == "sgd" || name == "adam" || name == "adamw" || name == "none") {
    if (!parsed.ok()) return parsed.status();
    if (name == "sgd") return make_sgd(std::move(parsed).value());
    if (name != "none") return make_adam(std::move(parsed).value(), name == "adamw");
    if (Status status = parsed->finish(); !status.ok()) return status;
    return std::unique_ptr<Optimizer>(std::make_unique<None>());
  }
  const std::string nearest = nearest_name(name, names);
  return Status(Code::kInvalidArgument, "unknown optimizer '" + given + "'" +
                                            (nearest.empty() ? "; there are sgd, adam, adamw and none"
                                                             : "; did you mean '" + nearest + "'?"));
}

}  // namespace dsgd

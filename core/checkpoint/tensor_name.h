// Names of a checkpoint's tensors, as README.md describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsgd::checkpoint {

struct TensorName {
  std::string parameter;
  std::string state;  // the optimizer's name of the tensor: "momentum_buffer"; empty: the values
  // Elements of a part; `end` 0: the whole tensor.
  uint64_t begin = 0, end = 0;
  bool operator==(const TensorName&) const = default;
};

std::string write_tensor_name(const TensorName& name);
std::optional<TensorName> read_tensor_name(std::string_view text);  // none: not such a name

}  // namespace dsgd::checkpoint

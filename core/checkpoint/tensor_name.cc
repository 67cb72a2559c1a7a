#include "core/checkpoint/tensor_name.h"

#include "core/base/integer.h"

namespace dsgd::checkpoint {
namespace {

bool read_range(std::string_view text, TensorName* name) {  // "[0:65536]"
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  text = text.substr(1, text.size() - 2);
  const size_t colon = text.find(':');
  if (colon == text.npos) return false;
  name->begin = parse_integer<uint64_t>(text.substr(0, colon)).value_or(0);
  name->end = parse_integer<uint64_t>(text.substr(colon + 1)).value_or(0);
  return name->begin < name->end;  // read_tensor_name() finds other faults
}

std::string_view take_word(std::string_view* text) {
  const std::string_view word = text->substr(0, text->find(' '));
  text->remove_prefix(word.size() == text->size() ? word.size() : word.size() + 1);
  return word;
}

}  // namespace

std::string write_tensor_name(const TensorName& name) {
  std::string text = name.parameter;
  if (!name.state.empty()) text += ' ' + name.state;
  if (name.end > 0) text += " [" + std::to_string(name.begin) + ':' + std::to_string(name.end) + ']';
  return text;
}

std::optional<TensorName> read_tensor_name(std::string_view text) {
  TensorName name;
  std::string_view rest = text;
  name.parameter = take_word(&rest);
  if (!rest.empty() && rest.front() != '[') name.state = take_word(&rest);
  if (!rest.empty() && !read_range(rest, &name)) return {};
  if (name.parameter.empty() || write_tensor_name(name) != text) return {};
  return name;
}

}  // namespace dsgd::checkpoint

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/base/text.h"
#include "core/config/config.h"

namespace dsgd {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

}  // namespace

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  char text[32];
  const auto [end, failed] = std::to_chars(text, text + sizeof text, number);
  return failed == std::errc() ? std::string(text, end) : std::to_string(number);
}

Result<Options> Options::parse(std::string_view text, const std::string& owner) {
  Options options;
  options.owner_ = owner;
  for (size_t begin = text.find_first_not_of(kBlank); begin != std::string_view::npos;
       begin = text.find_first_not_of(kBlank, begin)) {
    const size_t end = std::min(text.find_first_of(kBlank, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    begin = end;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0)
      return Status(Code::kInvalidArgument,
                    "option '" + std::string(word) + "' of " + owner +
                        " is not key=value; put spaces between options and none around '='");
    std::string key(word.substr(0, equals));
    for (const auto& [other, value] : options.words_)
      if (other == key)
        return Status(Code::kInvalidArgument, "option '" + key + "' of " + owner + " is given twice")
            .with_parameter(key);
    options.words_.emplace_back(std::move(key), word.substr(equals + 1));
  }
  return options;
}

const std::string* Options::read(std::string_view key) {
  known_.emplace_back(key);
  for (const auto& [name, value] : words_)
    if (name == key) return &value;
  return nullptr;
}

void Options::bad(std::string_view key, const std::string& value, const std::string& expected) {
  if (!first_error_.ok()) return;
  first_error_ =
      Status(Code::kInvalidArgument,
             "option '" + std::string(key) + "' of " + owner_ + ": '" + value + "' is not " + expected +
                 (value.find(',') == std::string::npos ? "" : "; put spaces, not commas, between options"))
          .with_parameter(std::string(key));
}

void Options::integer(std::string_view key, int32_t* out, int32_t minimum, int32_t maximum) {
  double value = *out;
  number(key, &value, minimum, maximum);
  if (value != std::trunc(value)) return bad(key, *read(key), "a whole number");
  *out = static_cast<int32_t>(value);
}

void Options::number(std::string_view key, double* out, double minimum, double maximum) {
  const std::string* value = read(key);
  if (!value) return;
  double number = 0;
  const char* const last = value->data() + value->size();
  const auto [end, failed] = std::from_chars(value->data(), last, number);
  if (failed != std::errc() || end != last || !std::isfinite(number))
    return bad(key, *value, "a finite number");
  if (number < minimum || number > maximum) {
    const bool bounded = maximum < std::numeric_limits<double>::max();
    return bad(key, *value,
               bounded ? "within " + number_text(minimum) + ".." + number_text(maximum)
                       : "at least " + number_text(minimum));
  }
  *out = number;
}

void Options::flag(std::string_view key, bool* out) {
  const std::string* value = read(key);
  if (!value) return;
  if (*value != "0" && *value != "1") return bad(key, *value, "0 or 1");
  *out = *value == "1";
}

void Options::choice(std::string_view key, std::string* out, const std::vector<std::string>& choices) {
  const std::string* value = read(key);
  if (!value) return;
  if (std::find(choices.begin(), choices.end(), *value) != choices.end()) {
    *out = *value;
    return;
  }
  bad(key, *value, "one of " + list_text(choices, choices.size()) + did_you_mean(*value, choices));
}

Status Options::finish() {
  if (!first_error_.ok()) return first_error_;
  for (const auto& [key, value] : words_) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string others =
        known_.empty() ? "; it has none" : "; it has " + list_text(known_, known_.size());
    return Status(Code::kInvalidArgument,
                  owner_ + " has no option '" + key + "'" + did_you_mean(key, known_, others))
        .with_parameter(key);
  }
  return {};
}

}  // namespace dsgd

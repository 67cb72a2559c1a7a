#include "capi/tools/failure_line.h"

#include <cstdlib>

namespace dsgd_tool {
namespace {

const std::string kPrefix = "dsgd run: ", kFailedFirst = " failed first: ", kFailedLast = " failed last: ",
                  kBecause = " failed because of rank ";

}  // namespace

std::string FailureLine::text() const {
  const std::string middle = cause >= 0 ? kBecause + std::to_string(cause) + ": "
                             : first    ? kFailedFirst
                                        : kFailedLast;
  return kPrefix + child + middle + how;
}

std::optional<FailureLine> FailureLine::parse(const std::string& line) {
  if (!line.starts_with(kPrefix + "worker ")) return std::nullopt;
  const auto child_before = [&](size_t at) { return line.substr(kPrefix.size(), at - kPrefix.size()); };
  for (const auto* middle : {&kFailedFirst, &kFailedLast}) {
    if (const size_t at = line.find(*middle); at != std::string::npos)
      return FailureLine{child_before(at), -1, line.substr(at + middle->size()), middle == &kFailedFirst};
  }
  const size_t at = line.find(kBecause);
  if (at == std::string::npos) return std::nullopt;
  const char* number = line.c_str() + at + kBecause.size();
  char* end = nullptr;
  const long cause = std::strtol(number, &end, 10);
  if (end == number || end[0] != ':' || end[1] != ' ') return std::nullopt;
  return FailureLine{child_before(at), static_cast<int>(cause), end + 2};
}

}  // namespace dsgd_tool

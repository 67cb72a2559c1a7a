// The line with which `dsgd run` names the worker after whose failure it ended the others. `dsgd run --hosts`
// parses it from the standard error of the supervised `dsgd run` on each host.
#pragma once

#include <optional>
#include <string>

namespace dsgd_tool {

struct FailureLine {
  std::string child;  // "worker 3"
  int cause = -1;     // rank that the failure of this worker names, -1: none
  std::string how;    // "sh failed with status 7"
  bool first = true;  // no worker has failed before

  std::string text() const;
  // Returns nothing if `line` is not one.
  static std::optional<FailureLine> parse(const std::string& line);
};

}  // namespace dsgd_tool

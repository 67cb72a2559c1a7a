// A table of calls that must fail, and how. Each file of cases adds its rows; bad_input_test.cc runs them all
// and checks that no function of dsgd.h lacks a row.
#pragma once

#include <functional>
#include <iosfwd>
#include <vector>

#include "tests/unit/capi/world.h"

struct BadCall {
  const char* function;
  const char* what;     // what is wrong with it
  int64_t expected;     // the result
  const char* message;  // part of the error's message; null for functions without an error argument
  std::function<int64_t(World&, dsgd_error**)> call;
};

void PrintTo(const BadCall& bad, std::ostream* out);  // for GoogleTest

std::vector<BadCall> config_cases();
std::vector<BadCall> session_cases();
std::vector<BadCall> model_cases();
std::vector<BadCall> step_cases();
std::vector<BadCall> operation_cases();
std::vector<BadCall> collective_cases();
std::vector<BadCall> data_cases();
std::vector<BadCall> plugin_cases();

// A handle of the wrong kind.
template <typename T, typename U>
T* foreign(U* handle) {
  return reinterpret_cast<T*>(handle);
}

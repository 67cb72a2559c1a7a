// A table of calls that must fail, and how. Each file of cases adds its rows; bad_input_test.cc runs them all
// and checks that no function of dsgd.h lacks a row.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <vector>

#include "tests/unit/capi/world.h"

// Words that the error's message must have: the thing, its value and what to do, as far as each applies. null
// for functions without an error argument.
struct Words {
  Words(std::nullptr_t) {}                                 // NOLINT: the table is to be read
  Words(const char* word) : message(true), words{word} {}  // NOLINT
  Words(std::initializer_list<const char*> all) : message(true), words(all.begin(), all.end()) {}  // NOLINT
  bool message = false;
  std::vector<std::string> words;
};

struct BadCall {
  const char* function;
  const char* what;  // what is wrong with it
  int64_t expected;  // the result
  Words says;
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

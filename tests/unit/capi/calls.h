// A right call of every function of dsgd.h that takes a session, a parameter, a replica, an op or a head and
// that returns a code. Tests make them in states in which all must be refused.
#pragma once

#include <functional>
#include <vector>

#include "tests/unit/capi/world.h"

struct Call {
  const char* function;
  bool has_error;  // an error argument, which then must tell the same
  std::function<double(World&, dsgd_error**)> call;
};

std::vector<Call> calls();

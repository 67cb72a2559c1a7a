// Strategies and algorithms by name: those of dsgd.h and those that the host has registered.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/all_reduce.h"
#include "core/device/backend.h"
#include "core/strategy/registered.h"
#include "core/strategy/traits.h"

namespace dsgd {

struct Registered {
  std::map<std::string, ScheduleAlgorithm::Write> algorithms;
  std::map<std::string, std::shared_ptr<const RegisteredStrategy>> strategies;
  // Finds the table of devices that are named so ("cuda"), when the first of them is asked for.
  using OpenBackend = std::function<Result<const device::Backend*>()>;
  using Backends = std::map<std::string, OpenBackend>;  // by name: "cuda"
  Backends backends;
  // Returns the name of the device whose memory a buffer is; "": the host's.
  using Locate = std::function<Result<std::string>(const void* data, size_t nbytes)>;
  Locate locate = [](const void*, size_t) { return std::string(); };
};

struct Strategy {  // a row of the table
  std::string name;
  std::vector<std::string> aliases = {};
  Traits traits = {};
  bool registered = false;  // by the host
};

inline constexpr int32_t kMaxCopies = 8;

struct StrategySpec {
  StrategySpec();  // allreduce
  std::shared_ptr<const Strategy> strategy;
  AlgorithmChoice algorithm = {};  // if the strategy takes one
  int32_t copies = 1;              // of the optimizer's state of a range
  std::string options = {};        // of a registered one
  const std::string& name() const { return strategy->name; }
  const Traits& traits() const { return strategy->traits; }
  std::string describe() const;  // canonical, for the signature
};

// The tables of strategies and algorithms: those of dsgd.h and those that the host has registered.
class Strategies {
 public:
  explicit Strategies(const Registered& registered = {});
  // `default_algorithm` and `default_copies` are the configuration's.
  Result<StrategySpec> parse(const std::string& name, const std::string& options,
                             const std::string& default_algorithm, int32_t default_copies = 1) const;
  Result<AlgorithmChoice> algorithm(const std::string& name) const;

  // Names, aliases among them.
  static std::vector<std::string> built_in();
  static std::vector<std::string> built_in_algorithms();

 private:
  std::vector<std::shared_ptr<const Strategy>> strategies_;
  std::vector<AlgorithmChoice> algorithms_;
};

}  // namespace dsgd

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

namespace dsgd {

struct RegisteredStrategy {
  // The owner updates and gives out values, as in `ps`; else it gives out the mean.
  bool update_at_owner = false;
  // The rank that owns elements [begin, begin + count) of a parameter. A pure function of its arguments.
  std::function<Result<int32_t>(const std::string& parameter, uint64_t begin, uint64_t count, int32_t size,
                                const std::string& options)>
      owner;
};

struct Registered {
  std::map<std::string, ScheduleAlgorithm::Write> algorithms;
  std::map<std::string, std::shared_ptr<const RegisteredStrategy>> strategies;
  // Finds the table of devices that are named so ("cuda"), when the first of them is asked for.
  using OpenBackend = std::function<Result<const device::Backend*>()>;
  using Backends = std::map<std::string, OpenBackend>;  // by name: "cuda"
  Backends backends;
  // An error that says so if a buffer for a replica on the host is memory of a device. Null: buffers are not
  // checked.
  using CheckHostMemory = std::function<Status(const void* data, size_t nbytes)>;
  CheckHostMemory check_host_memory;
};

enum class StrategyKind : uint8_t { kSimple, kAllReduce, kPs };

struct StrategySpec {
  // A registered one works as `simple` or `ps` do, with its own owners.
  StrategyKind kind = StrategyKind::kAllReduce;
  AlgorithmChoice algorithm = {};       // of allreduce
  std::string name = {}, options = {};  // of a registered one
  std::shared_ptr<const RegisteredStrategy> registered = {};
  std::string describe() const;  // canonical, for the signature
};

// Names of strategies and algorithms: those of dsgd.h, aliases among them, and those that the host has
// registered.
class Strategies {
 public:
  explicit Strategies(const Registered& registered = {});
  // `default_algorithm` is the configuration's.
  Result<StrategySpec> parse(const std::string& name, const std::string& options,
                             const std::string& default_algorithm) const;
  Result<AlgorithmChoice> algorithm(const std::string& name) const;

  static std::vector<std::string> built_in();
  static std::vector<std::string> built_in_algorithms();

 private:
  std::vector<std::string> algorithm_names() const;

  std::map<std::string, std::shared_ptr<ScheduleAlgorithm>> algorithms_;
  std::map<std::string, std::shared_ptr<const RegisteredStrategy>> strategies_;
};

}  // namespace dsgd

// Algorithms and strategies that the host registers.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/src/call.h"
#include "capi/src/config.h"
#include "capi/src/sized.h"
#include "core/base/text.h"

// Collects the transfers of an algorithm.
struct dsgd_schedule : dsgd::capi::HandleOf<dsgd_schedule> {
  static constexpr const char* kName = "dsgd_schedule";
  explicit dsgd_schedule(std::vector<dsgd::Transfer>* transfers) : transfers(transfers) {}

  std::vector<dsgd::Transfer>* const transfers;
};

// The argument of a strategy's owner function.
struct dsgd_placement : dsgd::capi::HandleOf<dsgd_placement> {
  static constexpr const char* kName = "dsgd_placement";
  dsgd_placement(const std::string& parameter, uint64_t begin, uint64_t count, int32_t size,
                 const std::string& options)
      : parameter(parameter), begin(begin), count(count), size(size), options(options) {}

  const std::string& parameter;
  const uint64_t begin, count;
  const int32_t size;
  const std::string& options;
};

namespace dsgd::capi {
namespace {

constexpr size_t kLongestName = 64;
constexpr size_t kAlgorithmFirstSize = 40;  // the smallest that is accepted
constexpr size_t kStrategyFirstSize = 40;   // the smallest that is accepted

// A copy of the host's struct. Releases `user` when destroyed, but only after registration has succeeded
// (`kept`).
template <typename Vtable>
struct Held : Vtable {
  explicit Held(const Vtable& given) : Vtable(given) {}
  ~Held() {
    if (kept && this->release) this->release(this->user);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  bool kept = false;
};

Status check_name(const Call& call, const char* name, const std::vector<std::string>& built_in,
                  bool registered) {
  const std::string text = name;
  const bool letters = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  if (text.size() > kLongestName || !letters || text[0] < 'a') {
    return call.invalid("name '" + printable(text) +
                        "' is not 1 to 64 lower-case letters, digits and '_' that begin with a letter");
  }
  if (registered || std::find(built_in.begin(), built_in.end(), text) != built_in.end()) {
    return call.fail(Code::kExists, "the name '" + text + "' is taken; give the plug-in one of its own");
  }
  return {};
}

Status check_version(const Call& call, uint32_t version, const char* argument) {
  if (version >= 1 && version <= DSGD_PLUGIN_VERSION) return {};
  return call.fail(Code::kUnsupported,
                   std::string("argument '") + argument + "' has version " + std::to_string(version) +
                       ", this library supports versions 1 to " + std::to_string(DSGD_PLUGIN_VERSION) +
                       "; set it to DSGD_PLUGIN_VERSION, or use a newer library");
}

Status check_function(const Call& call, bool given, const char* name) {
  return given ? Status() : call.invalid(std::string("function '") + name + "' is NULL");
}

// Calls a function of a plug-in. It must not throw; if it does, returns an error.
template <typename Function>
Result<int32_t> ask(const std::string& who, Function&& function) {
  try {
    return function();
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (...) {
    return Status(Code::kInternal, who + " threw an exception; plug-ins return a code instead");
  }
}

// The error for a code that a plug-in returned instead of DSGD_OK.
Status refusal(const std::string& who, int32_t code) {
  const bool known = code < 0 && dsgd::code_of(code) == static_cast<Code>(code);
  const std::string text = who + " answered " + (known ? dsgd_status_name(code) : std::to_string(code));
  switch (code) {  // the codes that a pure function may return; the others concern sessions and workers
    case DSGD_ERR_INVALID_ARGUMENT:
    case DSGD_ERR_STATE:
    case DSGD_ERR_NOT_FOUND:
    case DSGD_ERR_NO_MEMORY:
    case DSGD_ERR_LIMIT:
    case DSGD_ERR_UNSUPPORTED:
      return Status(static_cast<Code>(code), text);
    default:
      return Status(Code::kInternal, text);
  }
}

}  // namespace
}  // namespace dsgd::capi

using dsgd::Code;
using dsgd::Result;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::is_handle;

extern "C" {

int32_t dsgd_schedule_add(dsgd_schedule* schedule, int32_t transfer, int32_t round, int32_t peer,
                          uint64_t begin, uint64_t count, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(schedule, "schedule"));
    if (transfer < DSGD_TRANSFER_SEND || transfer > DSGD_TRANSFER_COPY) {
      return call.invalid("unknown transfer " + std::to_string(transfer) +
                          "; use a value of DSGD_TRANSFER_*");
    }
    // The check of the schedule reports the excess.
    if (schedule->transfers->size() > dsgd::ScheduleAlgorithm::kMaxTransfers) return {};
    schedule->transfers->push_back({static_cast<dsgd::TransferKind>(transfer), round, peer, begin, count});
    return {};
  });
}

int32_t dsgd_algorithm_init(dsgd_algorithm* algorithm, size_t struct_size) {
  return guard(__func__, nullptr, [&](const Call& call) -> Status {
    return init_sized(call, algorithm, struct_size, dsgd_algorithm{}, dsgd::capi::kAlgorithmFirstSize,
                      "algorithm");
  });
}

int32_t dsgd_algorithm_register(dsgd_config* config, const char* name, const dsgd_algorithm* algorithm,
                                dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.not_empty(name, "name"));
    DSGD_RETURN_IF_ERROR(
        check_sized(call, algorithm, dsgd::capi::kAlgorithmFirstSize, "algorithm", "dsgd_algorithm_init"));
    const dsgd_algorithm vtable = dsgd::capi::read_sized(algorithm);
    DSGD_RETURN_IF_ERROR(dsgd::capi::check_version(call, vtable.version, "algorithm"));
    DSGD_RETURN_IF_ERROR(call.flags(vtable.flags, 0, nullptr));
    DSGD_RETURN_IF_ERROR(dsgd::capi::check_function(call, vtable.allreduce != nullptr, "allreduce"));
    auto& registered = config->registered.algorithms;
    DSGD_RETURN_IF_ERROR(dsgd::capi::check_name(call, name, dsgd::Strategies::built_in_algorithms(),
                                                registered.count(name) > 0));
    config->values.allow("algorithm", name);
    const auto held = std::make_shared<dsgd::capi::Held<dsgd_algorithm>>(vtable);
    registered[name] = [held, who = "algorithm '" + std::string(name) + "'"](
                           int32_t rank, int32_t size, uint64_t count,
                           std::vector<dsgd::Transfer>* transfers) {
      dsgd_schedule schedule(transfers);
      auto answer =
          dsgd::capi::ask(who, [&] { return held->allreduce(held->user, rank, size, count, &schedule); });
      if (!answer.ok() || answer.value() == DSGD_OK) return answer.status();
      return dsgd::capi::refusal(who, answer.value());
    };
    held->kept = true;
    return {};
  });
}

const char* dsgd_placement_parameter(const dsgd_placement* placement) {
  return is_handle(placement) ? placement->parameter.c_str() : "";
}
uint64_t dsgd_placement_begin(const dsgd_placement* placement) {
  return is_handle(placement) ? placement->begin : 0;
}
uint64_t dsgd_placement_count(const dsgd_placement* placement) {
  return is_handle(placement) ? placement->count : 0;
}
int32_t dsgd_placement_size(const dsgd_placement* placement) {
  return is_handle(placement) ? placement->size : 0;
}
const char* dsgd_placement_options(const dsgd_placement* placement) {
  return is_handle(placement) ? placement->options.c_str() : "";
}

int32_t dsgd_strategy_init(dsgd_strategy* strategy, size_t struct_size) {
  return guard(__func__, nullptr, [&](const Call& call) -> Status {
    return init_sized(call, strategy, struct_size, dsgd_strategy{}, dsgd::capi::kStrategyFirstSize,
                      "strategy");
  });
}

int32_t dsgd_strategy_register(dsgd_config* config, const char* name, const dsgd_strategy* strategy,
                               dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.handle(config, "config"));
    DSGD_RETURN_IF_ERROR(call.not_empty(name, "name"));
    DSGD_RETURN_IF_ERROR(
        check_sized(call, strategy, dsgd::capi::kStrategyFirstSize, "strategy", "dsgd_strategy_init"));
    const dsgd_strategy vtable = dsgd::capi::read_sized(strategy);
    DSGD_RETURN_IF_ERROR(dsgd::capi::check_version(call, vtable.version, "strategy"));
    DSGD_RETURN_IF_ERROR(dsgd::capi::check_function(call, vtable.owner != nullptr, "owner"));
    DSGD_RETURN_IF_ERROR(call.flags(vtable.flags, DSGD_STRATEGY_UPDATE_AT_OWNER, "dsgd_strategy_flags"));
    auto& registered = config->registered.strategies;
    DSGD_RETURN_IF_ERROR(
        dsgd::capi::check_name(call, name, dsgd::Strategies::built_in(), registered.count(name) > 0));
    config->values.allow("strategy", name);
    dsgd::RegisteredStrategy made;
    made.update_at_owner = vtable.flags == DSGD_STRATEGY_UPDATE_AT_OWNER;
    const auto held = std::make_shared<dsgd::capi::Held<dsgd_strategy>>(vtable);
    made.owner = [held, who = "strategy '" + std::string(name) + "'"](
                     const std::string& parameter, uint64_t begin, uint64_t count, int32_t size,
                     const std::string& options) -> Result<int32_t> {
      const dsgd_placement placement(parameter, begin, count, size, options);
      auto rank = dsgd::capi::ask(who, [&] { return held->owner(held->user, &placement); });
      if (rank.ok() && rank.value() < 0) return dsgd::capi::refusal(who, rank.value());
      return rank;
    };
    registered[name] = std::make_shared<const dsgd::RegisteredStrategy>(std::move(made));
    held->kept = true;
    return {};
  });
}

}  // extern "C"

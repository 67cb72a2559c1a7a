// An all-reduce written down as data: which ranges a rank sends to and receives from which peers, in rounds.
// This is what an algorithm registered by a host gives (dsgd_algorithm_register). Before a schedule is used
// it is checked for all ranks together: what one sends the other expects, in the same round, so that no
// worker can wait for ever; in the end every rank holds every rank's contribution to every element once,
// added in the same order, so that all hold the same bits.
//
// Related: collectives as checked data are what MSCCL (Cowan et al., ASPLOS 2023) made of NCCL's algorithms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "transport/base/status.h"

namespace dsgd {

enum class TransferKind : uint8_t { kSend, kReduce, kCopy };  // kReduce and kCopy receive

struct Transfer {
  TransferKind kind;
  // A send uses the elements as they were before its round. Receives of a round are applied in the order of
  // the list.
  int32_t round;
  int32_t peer;
  uint64_t begin, count;  // elements
};

// One rank's part, ready to be carried out.
struct Schedule {
  struct Entry {
    Transfer transfer;
    uint32_t number = 0;     // among the transfers from the same sender to the same receiver
    uint32_t waits_for = 0;  // how many entries name it below
    // The elements of this send are overwritten in its own round, so it sends a copy. Otherwise both sides
    // could wait for ever, each for the other to read its elements first.
    bool copied = false;
    std::vector<uint32_t> before;     // begin when this one is over (when it has begun, if it is copied)
    std::vector<uint32_t> following;  // begin when this one has begun: sends to one peer begin in their order
  };
  std::vector<Entry> entries;  // by round, sends before receives
  uint64_t digest = 0;         // of all ranks' parts
};

class ScheduleAlgorithm {
 public:
  static constexpr size_t kMostTransfers = 65535;        // of one rank
  static constexpr size_t kMostOfAll = size_t{1} << 20;  // of all ranks together

  // A pure function of its arguments; may be called from any thread.
  using Write =
      std::function<Status(int32_t rank, int32_t size, uint64_t count, std::vector<Transfer>* transfers)>;

  ScheduleAlgorithm(std::string name, Write write) : name_(std::move(name)), write_(std::move(write)) {}
  const std::string& name() const { return name_; }

  // The checked part of `rank`. Made once for each count: sizes come again in each step.
  Result<std::shared_ptr<const Schedule>> schedule(int32_t rank, int32_t size, uint64_t count);

 private:
  static constexpr size_t kKept = 1 << 18;  // entries, of all that are kept

  Result<std::shared_ptr<const Schedule>> make(int32_t rank, int32_t size, uint64_t count) const;

  std::string name_;
  Write write_;
  // Key: rank, size, count.
  std::map<std::tuple<int32_t, int32_t, uint64_t>, std::shared_ptr<const Schedule>> kept_;
  size_t entries_ = 0;
};

}  // namespace dsgd

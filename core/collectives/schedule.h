// An all-reduce written down as data: which ranges a rank sends to and receives from which peers, in rounds.
// dsgd's own algorithms generate it (ring.h, halving_doubling.h), and an algorithm registered by a host gives
// it (dsgd_algorithm_register). Before a host's schedule is used it is checked for all ranks together: what
// one sends the other expects, in the same round, so that no worker can wait for ever; in the end every rank
// holds every rank's contribution to every element once, added in the same order, so that all hold the same
// bits.
//
// Related: collectives as checked data are what MSCCL (Cowan et al., ASPLOS 2023) made of NCCL's algorithms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
    uint32_t waits_for = 0;  // number of entries that list this one in `dependents` or `later_sends`
    // The elements of this send are overwritten in its own round, so it sends a copy. Otherwise both sides
    // could wait for ever, each for the other to read its elements first.
    bool copied = false;
    // Entries that wait until this one has ended (until it has begun, if it is copied).
    std::vector<uint32_t> dependents;
    // The next send to the same peer, which waits until this one has begun.
    std::vector<uint32_t> later_sends;
  };
  std::vector<Entry> entries;  // by round, sends before receives
  uint64_t digest = 0;         // of all ranks' parts, if it is a host's
};

// Writes one rank's transfers, in blocks of at most `block` elements, so that rounds overlap. The schedule
// must pass the check of a host's schedule. Besides, a rank may overwrite elements that it has sent only with
// data computed from them: the arrival of that data proves that the peer has read them.
using Generator = void (*)(int32_t rank, int32_t size, uint64_t count, uint64_t block,
                           std::vector<Transfer>* transfers);

// Adds the transfers of elements [begin, end), in blocks.
void add_transfers(std::vector<Transfer>* transfers, TransferKind kind, int32_t round, int32_t peer,
                   uint64_t begin, uint64_t end, uint64_t block);

class ScheduleAlgorithm {
 public:
  static constexpr size_t kMaxTransfers = 65535;        // of one rank
  static constexpr size_t kMaxOfAll = size_t{1} << 20;  // of all ranks together

  // A pure function of its arguments; may be called from any thread.
  using Write =
      std::function<Status(int32_t rank, int32_t size, uint64_t count, std::vector<Transfer>* transfers)>;

  ScheduleAlgorithm(std::string name, Write write) : name_(std::move(name)), write_(std::move(write)) {}
  explicit ScheduleAlgorithm(Generator generate) : generate_(generate) {}
  bool registered() const { return !generate_; }

  // The part of `rank`, checked if it is a host's. Made once for each count: sizes come again in each step.
  // `block` is for a generator. May be called from any thread.
  Result<std::shared_ptr<const Schedule>> schedule(int32_t rank, int32_t size, uint64_t count,
                                                   uint64_t block = 0);

 private:
  static constexpr size_t kKept = 1 << 18;  // entries, of all that are kept

  Result<std::shared_ptr<const Schedule>> make(int32_t rank, int32_t size, uint64_t count,
                                               uint64_t block) const;

  std::string name_;
  Write write_;
  Generator generate_ = nullptr;
  std::mutex mutex_;
  // Key: rank, size, count, block.
  std::map<std::tuple<int32_t, int32_t, uint64_t, uint64_t>, std::shared_ptr<const Schedule>> kept_;
  size_t entries_ = 0;
};

}  // namespace dsgd

#include "core/collectives/schedule.h"

#include <algorithm>
#include <deque>

#include "core/base/mix.h"
#include "core/base/sort_unique.h"

namespace dsgd {
namespace {

// Limit of the work of one check: the number of transfers times the segments that each covers.
constexpr uint64_t kMaxWork = uint64_t{1} << 24;

std::string range_text(uint64_t begin, uint64_t count) {
  return "elements " + std::to_string(begin) + " to " + std::to_string(begin + count);
}

std::string describe(const Transfer& transfer) {
  const char* verb = transfer.kind == TransferKind::kSend ? "sends" : "receives";
  const char* way = transfer.kind == TransferKind::kSend ? " to rank " : " from rank ";
  return std::string(verb) + ' ' + range_text(transfer.begin, transfer.count) + way +
         std::to_string(transfer.peer) + " in round " + std::to_string(transfer.round);
}

// The sums that one rank holds of each segment: whose contributions, and in which order they were added.
// Orders are hashes: equal for a + b and b + a, which are bit for bit the same, and for nothing else.
class Sums {
 public:
  static size_t words_of(int32_t size) { return (static_cast<size_t>(size) + 63) / 64; }

  Sums(int32_t rank, int32_t size, size_t segments)
      : words_(words_of(size)),
        orders_(segments, finalize64(static_cast<uint64_t>(rank) + 1)),
        members_(segments * words_, 0) {
    for (size_t segment = 0; segment < segments; ++segment) {
      members_[segment * words_ + static_cast<size_t>(rank) / 64] = uint64_t{1} << (rank % 64);
    }
  }
  Sums part(size_t first, size_t last) const {
    Sums part(words_);
    part.orders_.assign(orders_.begin() + first, orders_.begin() + last);
    part.members_.assign(members_.begin() + first * words_, members_.begin() + last * words_);
    return part;
  }
  uint64_t order(size_t segment) const { return orders_[segment]; }
  bool has(size_t segment, int32_t rank) const {
    return members_[segment * words_ + static_cast<size_t>(rank) / 64] >> (rank % 64) & 1;
  }
  void copy(size_t segment, const Sums& from, size_t theirs) {
    orders_[segment] = from.orders_[theirs];
    std::copy_n(from.members_.begin() + theirs * words_, words_, members_.begin() + segment * words_);
  }
  // False if a contribution is in both.
  bool add(size_t segment, const Sums& from, size_t theirs) {
    for (size_t w = 0; w < words_; ++w) {
      uint64_t& mine = members_[segment * words_ + w];
      if (mine & from.members_[theirs * words_ + w]) return false;
      mine |= from.members_[theirs * words_ + w];
    }
    orders_[segment] = finalize64(orders_[segment] + from.orders_[theirs]);
    return true;
  }

 private:
  explicit Sums(size_t words) : words_(words) {}

  size_t words_;
  std::vector<uint64_t> orders_, members_;
};

void sort_by_round(std::vector<Transfer>* transfers) {
  std::stable_sort(transfers->begin(), transfers->end(), [](const Transfer& a, const Transfer& b) {
    const bool a_receives = a.kind != TransferKind::kSend, b_receives = b.kind != TransferKind::kSend;
    return a.round != b.round ? a.round < b.round : a_receives < b_receives;
  });
}

// Adds where these transfers begin and end.
void add_cuts(const std::vector<Transfer>& transfers, std::vector<uint64_t>* cuts) {
  for (const Transfer& transfer : transfers) {
    cuts->push_back(transfer.begin);
    cuts->push_back(transfer.begin + transfer.count);
  }
}

std::pair<size_t, size_t> segments_of(const std::vector<uint64_t>& cuts, const Transfer& transfer) {
  const auto at = [&](uint64_t position) {
    return static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), position) - cuts.begin());
  };
  return {at(transfer.begin), at(transfer.begin + transfer.count)};
}

// All ranks' transfers of one operation, cut into the segments between all their ends.
class Check {
 public:
  Check(const std::string& name, int32_t size, uint64_t count)
      : name_(name), size_(size), count_(count), parts_(size) {}

  Status take(int32_t rank, std::vector<Transfer> transfers);
  Status pairs() const;    // what is sent is expected, and the reverse
  Status outcome() const;  // every rank ends with the same whole sum
  const std::vector<Transfer>& part(int32_t rank) const { return parts_[rank]; }
  uint64_t digest() const;

 private:
  Status wrong(const std::string& what) const {
    return Status(Code::kInvalidArgument, "algorithm '" + name_ + "' is wrong for " + std::to_string(size_) +
                                              " workers and " + std::to_string(count_) +
                                              " elements: " + what +
                                              "; ranks are numbered from 0 among the participating workers");
  }
  const std::string& name_;
  const int32_t size_;
  const uint64_t count_;
  size_t transfers_ = 0;
  std::vector<std::vector<Transfer>> parts_;  // by rank; by round, sends before receives
};

Status Check::take(int32_t rank, std::vector<Transfer> transfers) {
  const std::string who = "rank " + std::to_string(rank) + ' ';
  if (transfers.size() > ScheduleAlgorithm::kMaxTransfers) {
    return wrong(who + "has " + std::to_string(transfers.size()) + " transfers, at most " +
                 std::to_string(ScheduleAlgorithm::kMaxTransfers) + " are possible");
  }
  transfers_ += transfers.size();
  if (transfers_ > ScheduleAlgorithm::kMaxOfAll) {
    return wrong("the ranks together have more than " + std::to_string(ScheduleAlgorithm::kMaxOfAll) +
                 " transfers");
  }
  for (const Transfer& transfer : transfers) {
    if (transfer.peer < 0 || transfer.peer >= size_ || transfer.peer == rank) {
      return wrong(who + describe(transfer) + "; peers are the other ranks of 0 .. " +
                   std::to_string(size_ - 1));
    }
    if (transfer.round < 0) return wrong(who + describe(transfer) + "; rounds are numbered from 0");
    if (transfer.count == 0) return wrong(who + describe(transfer) + "; leave empty transfers out");
    if (transfer.begin > count_ || transfer.count > count_ - transfer.begin) {
      return wrong(who + describe(transfer) + "; the operation has " + std::to_string(count_) + " elements");
    }
  }
  sort_by_round(&transfers);
  parts_[rank] = std::move(transfers);
  return {};
}

Status Check::pairs() const {
  // By sender and receiver, in order.
  std::map<std::pair<int32_t, int32_t>, std::pair<std::vector<const Transfer*>, std::vector<const Transfer*>>>
      pairs;
  for (int32_t rank = 0; rank < size_; ++rank) {
    for (const Transfer& transfer : parts_[rank]) {
      if (transfer.kind == TransferKind::kSend) {
        pairs[{rank, transfer.peer}].first.push_back(&transfer);
      } else {
        pairs[{transfer.peer, rank}].second.push_back(&transfer);
      }
    }
  }
  for (const auto& [ranks, lists] : pairs) {
    const auto& [sends, receives] = lists;
    const std::string sender = "rank " + std::to_string(ranks.first) + ' ';
    const std::string receiver = "rank " + std::to_string(ranks.second) + ' ';
    for (size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
      if (k >= receives.size()) return wrong(sender + describe(*sends[k]) + ", which does not receive it");
      if (k >= sends.size()) return wrong(receiver + describe(*receives[k]) + ", which does not send it");
      const Transfer &out = *sends[k], &in = *receives[k];
      if (out.round == in.round && out.begin == in.begin && out.count == in.count) continue;
      return wrong(sender + describe(out) + ", but " + receiver + describe(in));
    }
  }
  return {};
}

// Runs the schedule on symbolic sums (Sums) instead of numbers.
Status Check::outcome() const {
  std::vector<uint64_t> cuts = {0, count_};
  for (const auto& part : parts_) add_cuts(part, &cuts);
  sort_unique(cuts);
  const size_t segments = cuts.size() - 1;
  const auto where = [&](size_t segment) {
    return range_text(cuts[segment], cuts[segment + 1] - cuts[segment]);
  };
  uint64_t work = static_cast<uint64_t>(size_) * segments;
  for (const auto& part : parts_) {
    for (const Transfer& transfer : part) {
      const auto [first, last] = segments_of(cuts, transfer);
      work += last - first;
    }
  }
  if (work * Sums::words_of(size_) > kMaxWork) {
    return wrong("it has too many transfers to be checked; cut the elements into fewer ranges");
  }

  std::vector<Sums> sums;
  for (int32_t rank = 0; rank < size_; ++rank) sums.emplace_back(rank, size_, segments);
  std::vector<size_t> next(size_, 0);
  for (int32_t round = 0; round >= 0;) {
    // A send uses the elements as they were before the round. The k-th send to a peer matches its k-th
    // receive.
    std::map<std::pair<int32_t, int32_t>, std::deque<Sums>> wires;
    for (int32_t rank = 0; rank < size_; ++rank) {
      for (; next[rank] < parts_[rank].size(); ++next[rank]) {
        const Transfer& transfer = parts_[rank][next[rank]];
        if (transfer.round != round || transfer.kind != TransferKind::kSend) break;
        const auto [first, last] = segments_of(cuts, transfer);
        wires[{rank, transfer.peer}].push_back(sums[rank].part(first, last));
      }
    }
    int32_t following = -1;  // numbers may be left out
    for (int32_t rank = 0; rank < size_; ++rank) {
      for (; next[rank] < parts_[rank].size(); ++next[rank]) {
        const Transfer& transfer = parts_[rank][next[rank]];
        if (transfer.round != round) {
          following = following < 0 ? transfer.round : std::min(following, transfer.round);
          break;
        }
        std::deque<Sums>& wire = wires[{transfer.peer, rank}];
        const Sums arrived = std::move(wire.front());
        wire.pop_front();
        const auto [first, last] = segments_of(cuts, transfer);
        for (size_t segment = first; segment < last; ++segment) {
          if (transfer.kind == TransferKind::kCopy) {
            sums[rank].copy(segment, arrived, segment - first);
          } else if (!sums[rank].add(segment, arrived, segment - first)) {
            return wrong("rank " + std::to_string(rank) + ' ' + describe(transfer) + " and adds " +
                         where(segment) + ", which hold contributions that it has already");
          }
        }
      }
    }
    round = following;
  }
  for (int32_t rank = 0; rank < size_; ++rank) {
    for (size_t segment = 0; segment < segments; ++segment) {
      for (int32_t member = 0; member < size_; ++member) {
        if (sums[rank].has(segment, member)) continue;
        return wrong("rank " + std::to_string(rank) + " ends without rank " + std::to_string(member) +
                     "'s contribution to " + where(segment));
      }
      if (sums[rank].order(segment) != sums[0].order(segment)) {
        return wrong("rank " + std::to_string(rank) + " adds " + where(segment) +
                     " in another order than rank 0, so their bits would differ");
      }
    }
  }
  return {};
}

uint64_t Check::digest() const {
  uint64_t digest = finalize64(count_ + 1);
  for (const auto& part : parts_) {
    for (const Transfer& t : part) {
      for (uint64_t field : {static_cast<uint64_t>(t.kind), static_cast<uint64_t>(t.round),
                             static_cast<uint64_t>(t.peer), t.begin, t.count}) {
        digest = finalize64(digest ^ finalize64(field + 0x9e3779b97f4a7c15ull));
      }
    }
    digest = finalize64(digest + 1);
  }
  return digest;
}

// An entry waits for each earlier entry that touches the same elements, unless both only read them. A send
// also waits for the previous send to the same peer; otherwise later data could fill the window that earlier
// data needs. No entry waits for ever, by induction over the rounds: the sends of a round wait for entries of
// earlier rounds and for sends to the same peer, its receives also for the sends of the round.
// `overwrites_read`: a receive need not wait for sends (see Generator).
std::shared_ptr<Schedule> make_schedule(const std::vector<Transfer>& transfers, bool overwrites_read) {
  auto schedule = std::make_shared<Schedule>();
  std::vector<uint64_t> cuts;
  add_cuts(transfers, &cuts);
  sort_unique(cuts);
  struct Touched {
    int64_t writer = -1;
    std::vector<uint32_t> readers;  // since it was written
  };
  std::vector<Touched> touched(cuts.size());
  std::map<std::pair<bool, int32_t>, uint32_t> numbers;
  std::map<int32_t, uint32_t> last_to;  // the newest send to each peer
  std::vector<Schedule::Entry>& entries = schedule->entries;
  for (const Transfer& transfer : transfers) {
    const uint32_t index = static_cast<uint32_t>(entries.size());
    const bool sends = transfer.kind == TransferKind::kSend;
    entries.push_back({transfer, numbers[{sends, transfer.peer}]++, 0, false, {}, {}});
    std::vector<uint32_t> earlier;
    const auto [first, last] = segments_of(cuts, transfer);
    for (size_t segment = first; segment < last; ++segment) {
      Touched& at = touched[segment];
      if (at.writer >= 0) earlier.push_back(static_cast<uint32_t>(at.writer));
      if (sends) {
        if (!overwrites_read) at.readers.push_back(index);
        continue;
      }
      for (uint32_t reader : at.readers) {
        earlier.push_back(reader);
        if (entries[reader].transfer.round == transfer.round) entries[reader].copied = true;
      }
      at.readers.clear();
      at.writer = index;
    }
    sort_unique(earlier);
    entries[index].waits_for = static_cast<uint32_t>(earlier.size());
    for (uint32_t entry : earlier) entries[entry].dependents.push_back(index);
    if (!sends) continue;
    if (const auto last_send = last_to.find(transfer.peer); last_send != last_to.end()) {
      ++entries[index].waits_for;
      entries[last_send->second].later_sends.push_back(index);
    }
    last_to[transfer.peer] = index;
  }
  return schedule;
}

}  // namespace

void add_transfers(std::vector<Transfer>* transfers, TransferKind kind, int32_t round, int32_t peer,
                   uint64_t begin, uint64_t end, uint64_t block) {
  for (; begin < end; begin += block)
    transfers->push_back({kind, round, peer, begin, std::min(block, end - begin)});
}

Result<std::shared_ptr<const Schedule>> ScheduleAlgorithm::schedule(int32_t rank, int32_t size,
                                                                    uint64_t count, uint64_t block) {
  const std::lock_guard lock(mutex_);
  const auto key = std::make_tuple(rank, size, count, block);
  if (auto kept = kept_.find(key); kept != kept_.end()) return kept->second;
  auto made = make(rank, size, count, block);
  if (!made.ok()) return made;
  entries_ += made.value()->entries.size() + 1;
  if (entries_ > kKept) {
    kept_.clear();
    entries_ = made.value()->entries.size() + 1;
  }
  kept_[key] = made.value();
  return made;
}

Result<std::shared_ptr<const Schedule>> ScheduleAlgorithm::make(int32_t rank, int32_t size, uint64_t count,
                                                                uint64_t block) const {
  if (generate_) {
    std::vector<Transfer> transfers;
    generate_(rank, size, count, block, &transfers);
    sort_by_round(&transfers);
    return std::shared_ptr<const Schedule>(make_schedule(transfers, true));
  }
  Check check(name_, size, count);
  for (int32_t r = 0; r < size; ++r) {
    std::vector<Transfer> transfers;
    DSGD_RETURN_IF_ERROR(write_(r, size, count, &transfers));
    DSGD_RETURN_IF_ERROR(check.take(r, std::move(transfers)));
  }
  DSGD_RETURN_IF_ERROR(check.pairs());
  DSGD_RETURN_IF_ERROR(check.outcome());
  auto schedule = make_schedule(check.part(rank), false);
  schedule->digest = check.digest();
  return std::shared_ptr<const Schedule>(std::move(schedule));
}

}  // namespace dsgd

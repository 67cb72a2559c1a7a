#include "core/session/collectives.h"

#include <cstring>
#include <functional>
#include <numeric>

#include "core/base/describe.h"
#include "core/collectives/all_reduce.h"
#include "core/collectives/broadcast.h"
#include "core/collectives/direct.h"
#include "core/collectives/exchange.h"
#include "core/reduce/kernels.h"
#include "transport/schema/codec.h"

namespace dsgd {

using transport::BulkHeader;

namespace {

// Half types are added up in float32, which is what travels.
std::shared_ptr<std::vector<float>> widened_copy(std::span<const std::byte> data, DType dtype) {
  auto copy = std::make_shared<std::vector<float>>(data.size() / dtype_size(dtype));
  widen(dtype, copy->data(), data.data(), copy->size());
  return copy;
}

std::vector<size_t> bounds_of(const std::vector<size_t>& counts) {
  std::vector<size_t> bounds(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), bounds.begin() + 1);
  return bounds;
}

}  // namespace

void Collectives::allreduce(std::span<std::byte> data, DType dtype, Reduction reduction, Done done,
                            const CallOptions& options) {
  if (Status status = admit_(); !status.ok()) return done(status);
  const SharedCall call = has_mesh() ? calls_.begin(&done, options) : nullptr;
  calls_.when_fetched(call, "all-reduce", options, done, [=, this] {
    if (!has_mesh()) return done({});  // sum, min, max, product and mean of one
    if (!is_half(dtype)) return allreduce_wide(call, data, dtype, reduction, done);
    const auto widened = widened_copy(data, dtype);
    allreduce_wide(call, std::as_writable_bytes(std::span(*widened)), dtype, reduction,
                   [widened, data, dtype, done](const Status& status) {
                     if (status.ok()) narrow(dtype, data.data(), widened->data(), widened->size());
                     done(status);
                   });
  });
}

// In the following, `dtype` is what the host has; the data is of wide(dtype).
void Collectives::allreduce_wide(const SharedCall& call, std::span<std::byte> data, DType dtype,
                                 Reduction reduction, Done done) {
  const size_t count = data.size() / dtype_size(wide(dtype));
  if (!algorithm_->registered() || count == 0)
    return reduce_all(call, data, dtype, reduction, std::move(done));
  // If the function gave different schedules on different workers, they would wait for each other. So they
  // are compared, in each call: blocking and asynchronous callers may not agree on which call is the first of
  // its size.
  compare_schedules(call, dtype, reduction, count, [=, this](const Status& status) {
    if (!status.ok()) return done(status);
    reduce_all(call, data, dtype, reduction, done);
  });
}

void Collectives::compare_schedules(const SharedCall& call, DType dtype, Reduction reduction, size_t count,
                                    Done done) {
  const std::string name = algorithm_->name;
  auto schedule = algorithm_->schedules->schedule(rank(), size(), count);
  const transport::ScheduleDigest mine{schedule.ok() ? schedule.value()->digest : 0, schedule.status()};
  BulkHeader like = shape_of(0, Kind::kAllReduce, dtype, Algorithm::kRegistered, count);
  like.reduction = static_cast<uint8_t>(reduction);
  like.tag = peers().chunk_bytes();
  calls_.exchange(call, like, transport::encode(mine), "",
                  [count, name, done](const Status& status, const Calls::Parts& all) {
                    if (!status.ok()) return done(status);
                    uint64_t first = 0;
                    for (size_t rank = 0; rank < all.size(); ++rank) {
                      auto theirs = transport::decode_schedule_digest(all[rank]);
                      const auto failed = [&](Code code, const std::string& message) {
                        done(Status(code, message).with_rank(static_cast<int32_t>(rank)));
                      };
                      if (!theirs.ok()) {
                        return done(invalid_data("all-reduce", static_cast<int32_t>(rank),
                                                 "an invalid schedule digest: " + theirs.status().message()));
                      }
                      if (!theirs->failure.ok())
                        return failed(theirs->failure.code(), theirs->failure.message());
                      if (rank == 0) first = theirs->digest;
                      if (theirs->digest != first) {
                        return failed(
                            Code::kMismatch,
                            "all-reduce: workers disagree on algorithm '" + name + "': for " +
                                std::to_string(count) + " elements rank 0 and rank " + std::to_string(rank) +
                                " have different schedules; register the same function on all workers");
                      }
                    }
                    done({});
                  });
}

void Collectives::reduce_all(const SharedCall& call, std::span<std::byte> data, DType dtype,
                             Reduction reduction, Done done) {
  const DType type = wide(dtype);
  const size_t element = dtype_size(type), count = data.size() / element;
  calls_.schedule(
      call,
      [=, this](uint64_t operation, Done ended) -> Result<std::unique_ptr<Task>> {
        BulkHeader header = shape_of(operation, Kind::kAllReduce, dtype, Algorithm::kAuto, count);
        header.reduction = static_cast<uint8_t>(reduction);
        AllReducePlan plan{count, type, reduction, data.data(), nullptr};
        if (reduction == Reduction::kMean) {
          plan.finish = [this, data, type, element](size_t begin, size_t end) {
            divide(type, data.data() + begin * element, end - begin, static_cast<double>(size()));
          };
        }
        return make_all_reduce(operations(), header, algorithm_, std::move(plan), std::move(ended));
      },
      std::move(done));
}

void Collectives::broadcast(std::span<std::byte> data, DType dtype, int32_t root, Done done,
                            const CallOptions& options) {
  if (Status status = admit_(); !status.ok()) return done(status);
  // A step of another thread may have brought another view since the arguments were checked.
  if (root >= size()) return done(call_of_earlier_view());
  if (!has_mesh()) return done({});
  const SharedCall call = calls_.begin(&done, options);
  calls_.when_fetched(call, "broadcast", options, done, [=, this] {
    calls_.schedule(
        call,
        [=, this](uint64_t operation, Done ended) {
          BulkHeader header = shape_of(operation, Kind::kBroadcast, dtype, Algorithm::kChain,
                                       data.size() / dtype_size(dtype));
          header.root = root;
          header.tag = peers().chunk_bytes();
          return std::make_unique<Broadcast>(operations(), header, data, ended);
        },
        done);
  });
}

void Collectives::allgather(std::span<const std::byte> send, std::span<std::byte> receive,
                            std::vector<size_t> counts, DType dtype, Done done, const CallOptions& options) {
  if (Status status = admit_(); !status.ok()) return done(status);
  if (counts.size() != static_cast<size_t>(size()) || counts[rank()] * dtype_size(dtype) != send.size())
    return done(call_of_earlier_view());
  const SharedCall call = has_mesh() ? calls_.begin(&done, options) : nullptr;
  calls_.when_fetched(call, "all-gather", options, done,
                      [=, this] { allgather_fetched(call, send, receive, counts, dtype, done); });
}

void Collectives::allgather_fetched(const SharedCall& call, std::span<const std::byte> send,
                                    std::span<std::byte> receive, std::vector<size_t> counts, DType dtype,
                                    Done done) {
  const size_t element = dtype_size(dtype);
  const std::vector<size_t> bounds = bounds_of(counts);
  std::byte* own = receive.data() + bounds[rank()] * element;
  if (!send.empty() && own != send.data()) std::memmove(own, send.data(), send.size());
  if (!has_mesh()) return done({});
  if (bounds.back() == 0)
    return meet(call, Kind::kAllGather, dtype, Reduction::kSum, std::move(counts), std::move(done));
  calls_.schedule(
      call,
      [=, this](uint64_t operation, Done ended) {
        BulkHeader header = shape_of(operation, Kind::kAllGather, dtype, Algorithm::kDirect, bounds.back());
        DirectPlan plan;
        plan.slices = slices_between(bounds);
        plan.reduce = false;
        plan.element = plan.result_element = element;
        plan.data = plan.result = receive.data();
        header.tag = Direct::tag(operations(), plan);
        auto task = std::make_unique<Direct>(operations(), header, std::move(plan), false, ended);
        task->set_counts({counts.begin(), counts.end()});
        return task;
      },
      std::move(done));
}

void Collectives::reduce_scatter(std::span<const std::byte> send, std::span<std::byte> receive,
                                 std::vector<size_t> counts, DType dtype, Reduction reduction, Done done,
                                 const CallOptions& options) {
  if (Status status = admit_(); !status.ok()) return done(status);
  if (counts.size() != static_cast<size_t>(size()) || counts[rank()] * dtype_size(dtype) != receive.size())
    return done(call_of_earlier_view());
  const SharedCall call = has_mesh() ? calls_.begin(&done, options) : nullptr;
  calls_.when_fetched(call, "reduce-scatter", options, done, [=, this] {
    reduce_scatter_fetched(call, send, receive, counts, dtype, reduction, done);
  });
}

void Collectives::reduce_scatter_fetched(const SharedCall& call, std::span<const std::byte> send,
                                         std::span<std::byte> receive, std::vector<size_t> counts,
                                         DType dtype, Reduction reduction, Done done) {
  if (!has_mesh()) {
    if (!receive.empty() && send.data() != receive.data())
      std::memmove(receive.data(), send.data(), receive.size());
    return done({});
  }
  if (!is_half(dtype)) {
    return reduce_scatter_wide(call, send, receive, std::move(counts), dtype, reduction, std::move(done));
  }
  const auto given = widened_copy(send, dtype);
  const auto sums = std::make_shared<std::vector<float>>(receive.size() / dtype_size(dtype));
  reduce_scatter_wide(call, std::as_bytes(std::span(*given)), std::as_writable_bytes(std::span(*sums)),
                      std::move(counts), dtype, reduction,
                      [given, sums, receive, dtype, done](const Status& status) {
                        if (status.ok()) narrow(dtype, receive.data(), sums->data(), sums->size());
                        done(status);
                      });
}

void Collectives::reduce_scatter_wide(const SharedCall& call, std::span<const std::byte> send,
                                      std::span<std::byte> receive, std::vector<size_t> counts, DType dtype,
                                      Reduction reduction, Done done) {
  const DType type = wide(dtype);
  const size_t element = dtype_size(type);
  const std::vector<size_t> bounds = bounds_of(counts);
  const std::byte* own = send.data() + bounds[rank()] * element;
  if (bounds.back() == 0)
    return meet(call, Kind::kReduceScatter, dtype, reduction, std::move(counts), std::move(done));
  // The sum is made in `receive`, beginning with this rank's own contribution: `send` stays as it is.
  if (!receive.empty() && own != receive.data()) std::memcpy(receive.data(), own, receive.size());
  calls_.schedule(
      call,
      [=, this](uint64_t operation, Done ended) {
        BulkHeader header =
            shape_of(operation, Kind::kReduceScatter, dtype, Algorithm::kDirect, bounds.back());
        header.reduction = static_cast<uint8_t>(reduction);
        DirectPlan plan;
        plan.slices = slices_between(bounds);
        plan.gather = false;
        plan.element = plan.result_element = element;
        plan.data = const_cast<std::byte*>(send.data());
        plan.own = receive.data();
        plan.ordered = is_floating(type);
        plan.add = std::bind_front(reduce_into, type, reduction);
        if (reduction == Reduction::kMean) {
          plan.transform = [this, receive, type, element, first = bounds[rank()]](size_t begin, size_t end) {
            divide(type, receive.data() + (begin - first) * element, end - begin,
                   static_cast<double>(size()));
          };
        }
        header.tag = Direct::tag(operations(), plan);
        auto task = std::make_unique<Direct>(operations(), header, std::move(plan), false, ended);
        task->set_counts({counts.begin(), counts.end()});
        return task;
      },
      std::move(done));
}

void Collectives::barrier(Done done, const CallOptions& options) {
  if (Status status = admit_(); !status.ok()) return done(status);
  if (!has_mesh()) return done({});
  const SharedCall call = calls_.begin(&done, options);
  meet(call, Kind::kBarrier, DType::kUint8, Reduction::kSum, {}, std::move(done));
}

// Runs an operation without data, to check that all workers make the same call.
void Collectives::meet(const SharedCall& call, Kind kind, DType dtype, Reduction reduction,
                       std::vector<size_t> counts, Done done) {
  calls_.schedule(
      call,
      [=, this](uint64_t operation, Done ended) {
        BulkHeader header = shape_of(operation, kind, dtype, Algorithm::kOneHop, 0);
        header.reduction = static_cast<uint8_t>(reduction);
        auto task = std::make_unique<Exchange>(operations(), header, std::vector<std::byte>(),
                                               [ended](const Status& status, const auto&) { ended(status); });
        task->set_counts({counts.begin(), counts.end()});
        return task;
      },
      std::move(done));
}

}  // namespace dsgd

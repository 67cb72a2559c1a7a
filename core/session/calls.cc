#include "core/session/calls.h"

#include <iterator>

#include "core/base/describe.h"
#include "core/collectives/broadcast.h"
#include "core/collectives/exchange.h"

namespace dsgd {

using transport::BulkHeader;

Calls::Calls(transport::Loop& loop, transport::Duration step_timeout, StallWatch& stalls,
             std::function<WaitReport(uint64_t)> report)
    : loop_(loop), step_timeout_(step_timeout), stalls_(stalls), report_(std::move(report)) {}

transport::Time Calls::deadline(const CallOptions& options) const {
  return loop_.now() + options.timeout_or(step_timeout_);
}

std::string Calls::deadline_setting(const CallOptions& options) const {
  return options.limit_or("step_timeout = " + describe_duration(step_timeout_));
}

uint64_t Calls::take(uint32_t channel) {
  const uint64_t number = next(channel);
  ++channels_[channel].next_call;
  return number;
}

std::shared_ptr<Call> Calls::make(uint64_t number, const CallOptions& options) const {
  return std::make_shared<Call>(Call{number, deadline(options), deadline_setting(options)});
}

std::shared_ptr<Call> Calls::begin(Done* done, const CallOptions& options) {
  const uint64_t number = take(options.channel);
  *done = stalls_.watch([this, number] { return report_(number); },
                        [this, number, done = std::move(*done)](const Status& status) {
                          if (mesh_) mesh_->operations.end_call(number, status);
                          done(status);
                        });
  return make(number, options);
}

void Calls::enqueue(const std::shared_ptr<Call>& call, MakeTask make, Done done) {
  if (!stopped_.ok()) return done(stopped_);
  const uint64_t operation = operation_number(call->number, call->next_operation++);
  insert(channel_of(call->number),
         {std::move(make), {}, std::move(done), operation, call->deadline, call->limit});
}

// In the order of the calls: a call's second operation goes before later calls, since other workers may wait
// for it.
void Calls::insert(uint32_t channel, Waiting added) {
  auto& waiting = channels_[channel].waiting;
  auto position = waiting.end();
  while (position != waiting.begin() && std::prev(position)->operation > added.operation) --position;
  waiting.insert(position, std::move(added));
  pump(channel);
}

void Calls::pump(uint32_t channel) {
  const size_t limit = channel == 0 ? kOpenTasks : kOpenTasksOfAChannel;
  auto& waiting = channels_[channel].waiting;
  size_t& running = channels_[channel].running;
  while (stopped_.ok() && running < limit && !waiting.empty()) {
    Waiting& first = waiting.front();
    const Done ended = [this, channel, done = first.done](const Status& status) {
      --channels_[channel].running;
      done(status);
      pump(channel);
    };
    if (first.fetch) {
      const auto fetch = std::move(first.fetch);
      waiting.pop_front();
      ++running;
      fetch(ended);
      continue;
    }
    // `first` stays in the queue until make() has returned. If make() throws, end_waiting() ends it.
    auto task = first.make(first.operation, ended);
    if (task.ok()) task.value()->set_limit(std::move(first.limit));
    const transport::Time deadline = first.deadline;
    waiting.pop_front();
    ++running;
    if (task.ok()) {
      mesh_->operations.add(std::move(task).value(), deadline);
    } else {
      ended(task.status());
    }
  }
}

void Calls::when_fetched(const std::shared_ptr<Call>& call, const char* name, const CallOptions& options,
                         Done done, std::function<void()> rest) {
  if (!options.fetch) return rest();
  if (!mesh_) {
    return options.fetch([done = std::move(done), rest = std::move(rest)](const Status& status) {
      status.ok() ? rest() : done(status);
    });
  }
  if (!stopped_.ok()) return done(stopped_);
  const uint64_t number = call->number, first = operation_number(number, 0);
  fetching_[number] = name;
  const Done fetched = [=, this, done = std::move(done), rest = std::move(rest),
                        begun_in = view()](const Status& status) {
    fetching_.erase(number);
    if (begun_in != view()) return done(ended_);
    if (status.ok()) return rest();
    if (!stopped_.ok()) return done(status);
    const int32_t rank = mesh_->peers.rank();
    const Status told = Status(status.code(), mesh_->members().name(rank) + ": " + status.message())
                            .with_rank(rank, mesh_->members().host_of(rank))
                            .with_operation(name);
    mesh_->operations.announce_failure(first, told);
    done(told);
  };
  insert(channel_of(number), {{}, options.fetch, fetched, first, call->deadline, call->limit});
}

std::string Calls::fetching(uint64_t call) const {
  const auto found = fetching_.find(call);
  return found == fetching_.end() ? std::string() : found->second;
}

void Calls::broadcast(const std::shared_ptr<Call>& call, Kind kind, DType dtype, std::span<std::byte> data,
                      int32_t source, const std::string& name, Done done,
                      std::shared_ptr<const Group> group) {
  schedule(
      call,
      [=, this](uint64_t operation, Done ended) {
        BulkHeader header =
            shape_of(operation, kind, dtype, Algorithm::kChain, data.size() / dtype_size(dtype));
        header.root = source;
        auto task = std::make_unique<Broadcast>(mesh_->operations, header, data, ended, group);
        task->rename(name);
        return task;
      },
      std::move(done));
}

void Calls::exchange(const std::shared_ptr<Call>& call, const BulkHeader& like, std::vector<std::byte> mine,
                     const std::string& name, std::function<void(const Status&, const Parts&)> done) {
  auto parts = std::make_shared<Parts>();
  schedule(
      call,
      [=, this, mine = std::move(mine)](uint64_t operation, Done ended) {
        BulkHeader header = like;
        header.operation = operation;
        auto task = std::make_unique<Exchange>(mesh_->operations, header, mine,
                                               [parts, ended](const Status& status, const auto& all) {
                                                 *parts = all;
                                                 ended(status);
                                               });
        if (!name.empty()) task->rename(name);
        return task;
      },
      [parts, done = std::move(done)](const Status& status) { done(status, *parts); });
}

bool Calls::idle() const {
  for (uint32_t channel = 0; channel < kChannels; ++channel) {
    if (open(channel) > 0) return false;
  }
  return true;
}

void Calls::end_waiting(const Status& why) {
  ended_ = why;
  for (Channel& channel : channels_) {
    while (!channel.waiting.empty()) {
      const Done done = std::move(channel.waiting.front().done);
      channel.waiting.pop_front();
      done(why);
    }
  }
}

std::vector<uint64_t> Calls::next_indexes() const {
  std::vector<uint64_t> indexes;
  for (const Channel& channel : channels_) indexes.push_back(channel.next_call);
  return indexes;
}

void Calls::set_next_indexes(const std::vector<uint64_t>& next_indexes) {
  for (uint32_t channel = 0; channel < kChannels; ++channel) {
    channels_[channel].next_call = next_indexes[channel];
    mesh_->operations.skip_to(call_number(channel, next_indexes[channel]));
  }
}

}  // namespace dsgd

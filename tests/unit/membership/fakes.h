// A loop and channels that the head's tests drive by hand: the head needs no more.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/network.h"

namespace dsgd {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""h;

class FakeLoop final : public transport::Loop {
 public:
  transport::Time now() const override { return now_; }
  void post(transport::Task task) override { timers_.emplace(now_, Entry{next_id_++, std::move(task)}); }
  transport::TimerId schedule(transport::Time when, transport::Task task) override {
    timers_.emplace(std::max(when, now_), Entry{next_id_, std::move(task)});
    return next_id_++;
  }
  void cancel(transport::TimerId id) override {
    for (auto it = timers_.begin(); it != timers_.end(); ++it) {
      if (it->second.id == id) {
        timers_.erase(it);
        return;
      }
    }
  }
  bool on_loop() const override { return true; }
  bool wait(const std::atomic<bool>& done, transport::Time) override { return done.load(); }
  uint64_t random() override { return 4; }

  // Runs all that is due until then.
  void advance(transport::Duration duration) {
    const transport::Time end = now_ + duration;
    while (!timers_.empty() && timers_.begin()->first <= end) {
      auto node = timers_.extract(timers_.begin());
      now_ = std::max(now_, node.key());
      node.mapped().task();
    }
    now_ = end;
  }
  // Time passes, but nothing runs: the process is stopped.
  void stop_for(transport::Duration duration) { now_ += duration; }

 private:
  struct Entry {
    transport::TimerId id;
    transport::Task task;
  };
  transport::Time now_{};
  transport::TimerId next_id_ = 1;
  std::multimap<transport::Time, Entry> timers_;  // equal times: in the order of insertion
};

class FakeChannel : public transport::ServerChannel {
 public:
  explicit FakeChannel(const std::string& worker_id, transport::Role role = transport::Role::kControl) {
    hello_.worker_id = worker_id;
    hello_.role = role;
  }
  const transport::Hello& hello() const override { return hello_; }
  std::string address() const override { return "10.0.0.9:4711"; }
  void discard(uint64_t, const Status&) override {}
  void close() override { closed = true; }

  void claim(int32_t rank, const std::string& job_nonce) { hello_.rank = rank, hello_.job_nonce = job_nonce; }
  void in_view(uint64_t view) { hello_.view = view; }

  bool closed = false;

 private:
  transport::Hello hello_;
};

// The outcome of one call.
class Answer {
 public:
  transport::Responder responder() {
    return [state = state_](Result<transport::Message> result) {
      if (!*state) state->emplace(std::move(result));
    };
  }
  bool given() const { return state_->has_value(); }
  bool ok() const { return given() && (*state_)->ok(); }
  Status status() const { return given() ? (*state_)->status() : Status(); }
  template <typename T>
  T message() const {
    return std::get<T>((*state_)->value());
  }

 private:
  std::shared_ptr<std::optional<Result<transport::Message>>> state_ =
      std::make_shared<std::optional<Result<transport::Message>>>();
};

}  // namespace dsgd

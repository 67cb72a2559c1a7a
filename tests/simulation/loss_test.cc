// Workers are lost or join, and the others train on in a new view. In step k each worker's gradient is a
// power of two of its own in element k, so the model itself says whose gradients each step has used. A
// checker that knows nothing of the protocol reads what the workers noted. In some jobs the workers also draw
// samples from a data shard, and a gradient has 1 for each sample: a second checker adds up which samples
// were used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "registered.h"
#include "tests/unit/begin.h"
#include "tests/unit/sanitizer.h"
#include "tests/unit/wait_for.h"
#include "transport/sim/random.h"

namespace dsgd::simulation::loss_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using transport::Death;
using transport::Duration;
using transport::Random;

constexpr Duration kLease = 500ms;
const int kStride = 2 * dsgd_test::one_of(2, 8);  // between the moments of faults

struct Loss {
  int worker = 0;
  Duration after{};  // all have joined
  enum Kind { kKill, kMachineDies, kPause, kCut, kFails } kind = kKill;
};

constexpr const char* kKinds[] = {"killed", "machine dies", "paused", "cut off", "fails"};

// Two workers cannot reach each other, in one direction or in both. Both reach the head.
struct PairCut {
  int one = 0, other = 1;
  Duration after{};  // all have joined
  bool there = true, back = true;
};

// The network splits: no worker below this number can reach one from it on. All reach the head.
struct Split {
  int first = 1;     // of the second part
  Duration after{};  // all have joined
};

struct HeadLoss {
  Duration after{};  // all have joined
  Duration down{};   // then it is started again
  Death death = Death::kReset;
  bool other = false;  // meanwhile a head of another job runs at its address
};

struct DiskStall {   // of the head's disk
  Duration after{};  // all have joined
  Duration lasts{};
};

struct Job {
  int workers = 3;
  int min_workers = 1;
  int steps = 30;
  size_t elements = 4000;
  uint64_t seed = 1;
  std::vector<Loss> losses = {};
  std::map<int, int> leaves = {};  // steps after which these workers close their sessions
  bool leaves_in_step = false;     // when they have begun the next step, and have marked no gradient
  std::optional<PairCut> pair_cut = {};
  std::optional<Split> split = {};
  std::vector<HeadLoss> head_losses = {};  // one after the other
  int head_machines = 1;                   // on which heads are started in turn
  std::optional<DiskStall> disk_stall = {};
  std::vector<Duration> joins = {};  // of further workers, after the job's begin
  std::map<std::string, std::string> settings = {};
  bool overlapped = false;
  bool gpus = false;            // replicas are on a GPU, but for every third worker
  bool metrics = false;         // a collective comes after each step
  bool closes_at_once = false;  // after its last step, rather than after steps of weight 0 until all_done
  std::string optimizer = "sgd";
  double momentum = 0.5;  // of sgd
  int64_t samples = 0;    // of a data shard; 0: there is none
  int epochs = 1;
  bool ahead = false;           // draws while a step is in flight
  bool changes = false;         // of strategy, before steps 5 and 10
  int checkpoint_interval = 0;  // in steps; 0: no checkpoints
  transport::LinkDelay delay = {};

  int all() const { return workers + static_cast<int>(joins.size()); }

  std::string describe() const {
    std::string text =
        std::to_string(workers) + " workers, at least " + std::to_string(min_workers) + ", " +
        std::to_string(elements) + " elements, seed " + std::to_string(seed) +
        (overlapped ? ", overlapped" : "") + (gpus ? ", on GPUs" : "") + (metrics ? ", with metrics" : "") +
        (leaves_in_step ? ", leaving in a step" : "") + (closes_at_once ? ", closing at once" : "") +
        (samples > 0 ? ", " + std::to_string(samples) + " samples" : "") + (ahead ? " drawn ahead" : "") +
        (checkpoint_interval ? ", a checkpoint every " + std::to_string(checkpoint_interval) + " steps" : "");
    for (const auto& [key, value] : settings) text += ", " + key + "=" + value;
    for (Duration join : joins) text += "; one joins after " + std::to_string(join.count() / 1000) + " us";
    for (const HeadLoss& loss : head_losses)
      text += std::string("; the head ") + (loss.death == Death::kReset ? "is killed" : "falls silent") +
              " after " + std::to_string(loss.after.count() / 1000) + " us, and is back " +
              std::to_string(loss.down.count() / 1000) + " us later" +
              (loss.other ? ", after a head of another job" : "");
    for (const auto& [worker, step] : leaves)
      text += "; " + std::to_string(worker) + " leaves before step " + std::to_string(step);
    if (head_machines > 1) text += ", on another machine";
    if (disk_stall)
      text += "; the head's disk stalls after " + std::to_string(disk_stall->after.count() / 1000) + " us";
    if (pair_cut)
      text += "; " + std::to_string(pair_cut->one) + " is cut off from " + std::to_string(pair_cut->other) +
              (pair_cut->there && pair_cut->back ? ""
               : pair_cut->there                 ? ", which still reaches it,"
                                                 : ", which it still reaches,") +
              " after " + std::to_string(pair_cut->after.count() / 1000) + " us";
    if (split)
      text += "; a split before " + std::to_string(split->first) + " after " +
              std::to_string(split->after.count() / 1000) + " us";
    for (const Loss& loss : losses)
      text += "; " + std::to_string(loss.worker) + " " + kKinds[loss.kind] + " after " +
              std::to_string(loss.after.count() / 1000) + " us";
    return text;
  }
};

struct CompletedStep {  // a step that has ended well, as its worker saw it
  StepResult result;
  float change = 0;  // of the step's element
};

struct Sample {
  uint64_t epoch = 0;
  int64_t index = 0;
  auto operator<=>(const Sample&) const = default;
};

constexpr int64_t kMaxSteps = 2000;

struct WorkerRecord {
  int first = 0;  // step that the worker has made
  std::vector<CompletedStep> steps;
  std::map<int, std::vector<Sample>> drawn;  // by step, also one that the worker has not ended
  std::map<int, CompletedStep> last_steps;   // in which some workers have no samples left
  std::vector<float> sums;                   // of the parameter of the samples
  std::vector<float> values;
  std::vector<float> left_with;  // values of a worker that has left
  const CompletedStep& at(int step) const { return steps.at(static_cast<size_t>(step - first)); }
  // The first step that it has not made.
  int end() const {
    return last_steps.empty() ? first + static_cast<int>(steps.size()) : last_steps.rbegin()->first + 1;
  }
};

// Between steps, on a channel of its own. If a loss ends it here, it may have ended well elsewhere, so the
// worker goes on without it.
bool sum_metric(Cluster& cluster, Session& session, int worker, int step) {
  return cluster.note(worker, "metric " + std::to_string(step), [&] {
    int32_t sum = 1;
    const Status status = wait_for(session, begin(session.allreduce(&sum, &sum, sizeof sum, DType::kInt32,
                                                                    Reduction::kSum, {.channel = 1}),
                                                  Session::Mode::kQueue));
    return status.code() == Code::kViewChanged ? Status() : status;
  });
}

std::vector<Sample> draw_samples(Session& session, SharedShard& shard, size_t most) {
  std::vector<int64_t> indices(most);
  std::optional<size_t> count;
  while (!(count = shard.next(indices.data(), most))) {
    if (!session.wait_for_samples(shard).ok()) return {};
  }
  const uint64_t epoch = shard.read([](const Shard& of) { return of.epoch(); });
  std::vector<Sample> samples;
  for (size_t i = 0; i < *count; ++i) samples.push_back({epoch, indices[i]});
  return samples;
}

void train(const Job& job, Cluster& cluster, Session& session, int worker, WorkerRecord* seen) {
  // A worker that joins may have been lost by now.
  if (!cluster.note(worker, "optimizer", [&] {
        return session.set_optimizer(
            job.optimizer, job.optimizer == "sgd" ? "lr=1 momentum=" + std::to_string(job.momentum) : "");
      }))
    return;
  Random random(job.seed * 64 + static_cast<uint64_t>(worker));
  const auto count = static_cast<int64_t>(job.elements);
  Parameter* const parameter = session.add_parameter("p", DType::kFloat32, {&count, 1}, true).value();
  Replica* const replica = session.add_replica(job.gpus && worker % 3 != 2 ? "cuda:0" : "cpu").value();
  const auto memory = session.alloc(replica, parameter).value();
  float* const value = static_cast<float*>(memory->value);
  float* const gradient = static_cast<float*>(memory->gradient);
  std::shared_ptr<TensorMemory> sums;
  Parameter* of_samples = nullptr;
  if (job.samples > 0) {
    const int64_t size = job.samples + kMaxSteps;
    of_samples = session.add_parameter("samples", DType::kFloat32, {&size, 1}, true).value();
    sums = session.alloc(replica, of_samples).value();
    std::fill_n(static_cast<float*>(sums->value), size, 0.0f);
  }
  std::shared_ptr<SharedShard> shard;
  const auto make_shard = [&] {
    if (job.samples > 0 && !shard) shard = session.add_shard(static_cast<uint64_t>(job.samples), 3, true);
  };
  if (random.chance(0.5)) make_shard();  // of a worker that joins: before it knows where the others are
  if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
  make_shard();
  seen->first = static_cast<int>(session.info().steps);
  std::vector<Sample> drawn;
  const auto draw_some = [&] {
    if (!shard) return;
    for (const Sample& sample : draw_samples(session, *shard, 1 + random.below(6))) drawn.push_back(sample);
  };
  // The gradient of the samples that were drawn. Returns their number.
  const auto compute = [&](int step) {
    if (drawn.empty()) draw_some();
    seen->drawn[step] = std::exchange(drawn, {});
    if (!shard) return size_t{0};
    float* const of_sample = static_cast<float*>(sums->gradient);
    std::fill_n(of_sample, job.samples + kMaxSteps, 0.0f);
    for (const Sample& sample : seen->drawn[step]) of_sample[sample.index] += 1;
    of_sample[job.samples + step] = static_cast<float>(1 << worker);
    return seen->drawn[step].size();
  };
  int k = seen->first;
  for (; k < job.steps; ++k) {
    if (const auto leaves = job.leaves.find(worker); leaves != job.leaves.end() && k >= leaves->second) {
      if (!job.leaves_in_step) {
        seen->left_with.assign(value, value + job.elements);
        return;
      }
      auto operation = session.step_begin(1);
      cluster.pass_time(worker, 1ms);
      cluster.note(worker, "close in a step", [&] { return session.close(0ms); });
      return;
    }
    if (job.changes && (k == 5 || k == 10)) {
      const bool to_ps = (k == 5) == (job.settings.at("strategy") == "allreduce");
      if (!cluster.note(worker, "strategy", [&] {
            return session.set_strategy(to_ps ? "ps" : "allreduce", to_ps ? "copies=2" : "");
          }))
        return;
    }
    compute(k);
    std::fill_n(gradient, job.elements, 0.0f);
    const size_t at = static_cast<size_t>(k) * (job.elements / static_cast<size_t>(job.steps));
    gradient[at] = static_cast<float>(1 << worker);
    const float before = value[at];
    StepResult result;
    const bool made = cluster.note(worker, "step " + std::to_string(k), [&] {
      if (!job.overlapped) return session.step(1, &result);
      auto operation = session.step_begin(1);
      if (!operation.ok()) return operation.status();
      if (Status marked = session.gradient_ready(replica, parameter, nullptr);
          !marked.ok() && marked.code() != Code::kState)
        return marked;
      if (job.ahead) draw_some();
      if (of_samples) {
        if (Status marked = session.gradient_ready(replica, of_samples, nullptr);
            !marked.ok() && marked.code() != Code::kState)
          return marked;
      }
      Status status = session.wait(*operation.value(), -1ms);
      result = operation.value()->step_result();
      return status;
    });
    if (!made) return;
    seen->steps.push_back({result, before - value[at]});
    if (job.metrics && !sum_metric(cluster, session, worker, k)) return;
  }
  std::fill_n(gradient, job.elements, 0.0f);
  const auto epoch = [&] { return shard ? shard->read([](const Shard& of) { return of.epoch(); }) : 0; };
  for (uint64_t e = epoch(); e < static_cast<uint64_t>(job.epochs); ++e) {
    while (epoch() < e && !shard->seek(e, 0)) {
      if (!session.wait_for_samples(*shard).ok()) return;
    }
    StepResult last;
    for (; !job.closes_at_once && !last.all_done; ++k) {
      if (k == kMaxSteps) std::abort();
      const double weight = compute(k) > 0 ? 1 : 0;
      if (!cluster.note(worker, "last step", [&] { return session.step(weight, &last); })) return;
      // The change of the step's element of the samples' parameter.
      const float change = shard ? -static_cast<float*>(sums->value)[job.samples + k] : 0;
      seen->last_steps[k] = {last, change};
    }
  }
  if (shard)
    seen->sums.assign(static_cast<float*>(sums->value), static_cast<float*>(sums->value) + job.samples);
  seen->values.assign(value, value + job.elements);
}

// The workers whose gradients a step has used, as a bit mask.
int used(const CompletedStep& made) {
  return static_cast<int>(std::lround(static_cast<double>(made.change) * made.result.weight));
}

class Outcome {
 public:
  explicit Outcome(const Job& job) : job_(job), seen(static_cast<size_t>(job.all())) {
    ClusterOptions options{.workers = job.workers,
                           .separate_head = true,
                           .durable_head = !job.head_losses.empty() || job.disk_stall,
                           .head_machines = job.head_machines,
                           .seed = job.seed};
    options.settings = {{"lease", "500ms"},
                        {"min_workers", std::to_string(job.min_workers)},
                        {"max_workers", std::to_string(job.all())},
                        {"step_timeout", "20s"},
                        {"head_timeout", "5s"},
                        {"strategy", "allreduce"}};
    if (job.checkpoint_interval > 0) {
      options.files = true;
      options.disk = disk_;
      options.settings["checkpoint_dir"] = kCheckpoints;
      options.settings["checkpoint_interval"] = std::to_string(job.checkpoint_interval);
    }
    for (const auto& [key, value] : job.settings) options.settings[key] = value;
    options.network.delay = job.delay;
    options.joiners = static_cast<int>(job.joins.size());
    options.registered = registered_with_devices();
    cluster_.emplace(options, [this](Cluster& cluster, Session& session, int worker) {
      train(job_, cluster, session, worker, &seen[static_cast<size_t>(worker)]);
    });
    Cluster& cluster = *cluster_;
    for (int w = 0; w < job.workers; ++w)
      EXPECT_TRUE(cluster.run_until_noted(w, "open", 10s)) << job.describe();
    for (size_t i = 0; i < job.joins.size(); ++i) {
      cluster.world.at(cluster.world.now() + job.joins[i],
                       [&cluster, w = job.workers + static_cast<int>(i)] { cluster.start_worker(w); });
    }
    for (const HeadLoss& loss : job.head_losses) {
      const transport::Time when = cluster.world.now() + loss.after;
      cluster.world.at(when, [&cluster, loss] { cluster.kill_head(loss.death); });
      if (loss.other) cluster.world.at(when + 1ms, [&cluster] { cluster.start_other_head(); });
      if (loss.other && job.head_machines == 1)
        cluster.world.at(when + loss.down - 1ms, [&cluster] { cluster.kill_head(Death::kReset); });
      cluster.world.at(when + loss.down, [this, &cluster] {
        cluster.start_head();
        for (const int worker : cut_off_) cluster.world.isolate(cluster.process(worker));  // from it, too
      });
    }
    if (job.disk_stall) {
      cluster.world.at(
          cluster.world.now() + job.disk_stall->after,
          [&cluster, lasts = job.disk_stall->lasts] { cluster.disk_back_at = cluster.world.now() + lasts; });
    }
    for (const Loss& loss : job.losses) {
      cluster.world.at(cluster.world.now() + loss.after, [this, loss] { lose(loss); });
    }
    if (job.split) {
      cluster.world.at(cluster.world.now() + job.split->after, [&cluster, &job] {
        for (int one = 0; one < job.split->first; ++one) {
          for (int other = job.split->first; other < job.workers; ++other) {
            cluster.world.block(cluster.process(one), cluster.process(other));
            cluster.world.block(cluster.process(other), cluster.process(one));
          }
        }
      });
    }
    if (job.pair_cut) {
      cluster.world.at(cluster.world.now() + job.pair_cut->after, [&cluster, cut = *job.pair_cut] {
        const transport::ProcessId one = cluster.process(cut.one), other = cluster.process(cut.other);
        if (cut.there) cluster.world.block(one, other);
        if (cut.back) cluster.world.block(other, one);
      });
    }
    ended = cluster.run_until_ended(300s);                           // slow networks need more than a minute
    if (job.head_losses.empty()) cluster.world.run_for(2 * kLease);  // the head hears of the last ones
    std::vector<int> cut_off;                                        // some of these
    if (job.pair_cut) cut_off = {job.pair_cut->one, job.pair_cut->other};
    for (int w = 0; w < job.workers && job.split; ++w) cut_off.push_back(w);
    for (int worker : cut_off) {
      const NotedCall* const failure = cluster.first_failure(worker);
      if (failure && failure->status.code() == Code::kEvicted)
        lost_.insert(worker);  // the head has chosen it
    }
    if (job.checkpoint_interval > 0) load_checkpoint();
  }

  Cluster& cluster() { return *cluster_; }
  const Cluster& cluster() const { return *cluster_; }
  bool survives(int worker) const { return lost_.count(worker) == 0; }
  // Whether a worker that is left has copied a step that it could not end any more.
  bool copied() const {
    for (int w = 0; w < job_.workers; ++w) {
      for (const std::string& line : cluster_->log(w)) {
        if (line.rfind("copies the state", 0) == 0) return true;
      }
    }
    return false;
  }
  bool finished(int worker) const {
    const WorkerRecord& of_worker = seen[static_cast<size_t>(worker)];
    return !of_worker.values.empty();
  }

  // Checks the rules that hold in every job (README.md). Returns those that do not.
  std::vector<std::string> problems() const {
    std::vector<std::string> found;
    const auto problem = [&](int worker, const std::string& text) {
      found.push_back("worker " + std::to_string(worker) + ": " + text + "\n" + cluster_->history(worker));
    };
    const WorkerRecord* reference = nullptr;  // of a worker that was there from the first step on
    std::map<int64_t, int> members;           // by view: the workers that its first step here has used
    for (int w = 0; w < job_.all(); ++w) {
      const WorkerRecord& mine = seen[static_cast<size_t>(w)];
      int before = 0, gone = 0;
      int64_t view = 0;
      for (size_t i = 0; i < mine.steps.size(); ++i) {
        const int k = mine.first + static_cast<int>(i);
        const CompletedStep& made = mine.steps[i];
        // The others may have repeated the last step of a lost worker, with one that has joined.
        const bool repeated = !survives(w) && i + 1 == mine.steps.size();
        const int used_mask = used(made),
                  survivors = survivors_of(k) & (repeated ? (1 << job_.workers) - 1 : ~0);
        const std::string step = "step " + std::to_string(k);
        if (made.result.step != k) problem(w, step + " has another index in its result");
        if (__builtin_popcount(static_cast<unsigned>(used_mask)) != static_cast<int>(made.result.weight))
          problem(w, step + " has used " + std::to_string(used_mask) + " with weight " +
                         std::to_string(made.result.weight));
        if ((used_mask & survivors) != survivors)
          problem(w, step + " lacks a survivor: " + std::to_string(used_mask));
        if (made.result.view < view) problem(w, step + " was made in an earlier view than the one before");
        view = made.result.view;
        if (job_.leaves.empty() && made.result.size != __builtin_popcount(static_cast<unsigned>(used_mask)))
          problem(w, step + " has not used all " + std::to_string(made.result.size) + " workers of its view");
        if (job_.leaves.empty() && members.emplace(view, used_mask).first->second != used_mask)
          problem(w, step + " has used other workers than a step of the same view");
        gone |= before & ~used_mask;
        if ((used_mask & gone) != 0) problem(w, step + " has used a worker that was lost before");
        before = used_mask;
      }
      if (!survives(w) || job_.leaves.count(w) > 0 || came_too_late(w)) continue;
      if (!finished(w)) {
        problem(w, "has not finished");
        continue;
      }
      if (!reference) reference = &mine;
      if (mine.steps.empty() && !mine.last_steps.empty() && !reference->last_steps.empty() &&
          mine.last_steps.begin()->first > reference->last_steps.rbegin()->first)
        continue;  // the others had ended, and it has trained on alone, with another epoch
      if (mine.values != reference->values) problem(w, "has other values");
    }
    // A step is final when a worker has completed the next one; the last one of a lost worker may be
    // repeated.
    for (int w = 0; w < job_.all() && reference; ++w) {
      const WorkerRecord& mine = seen[static_cast<size_t>(w)];
      const int last = mine.first + static_cast<int>(mine.steps.size()) - (survives(w) ? 0 : 1);
      for (int k = std::max(mine.first, reference->first); k < last; ++k) {
        if (used(mine.at(k)) != used(reference->at(k)))
          problem(w, "step " + std::to_string(k) + " has used other workers here than elsewhere");
      }
    }
    // All workers that have trained have closed their sessions well.
    const bool loses = !lost_.empty() || !job_.losses.empty() || !job_.head_losses.empty();
    for (int w = 0; w < job_.all() && !loses && !job_.pair_cut && !job_.split; ++w) {
      if (left_unconfirmed(w)) problem(w, "not all workers have confirmed its last step");
    }
    if (!loses && reference && !(cluster_->head_result() && cluster_->head_result()->ok()))
      found.push_back("the head says that the job has failed: " +
                      (cluster_->head_result() ? cluster_->head_result()->message() : "it has not ended") +
                      '\n' + cluster_->histories());
    if (reference) check_values(reference->values, kMaxSteps, "the model", *reference, &found);
    if (reference && reference->first == 0 && job_.samples > 0) check_samples(*reference, &found);
    for (const auto& [w, step] : job_.leaves) {
      const WorkerRecord& mine = seen[static_cast<size_t>(w)];
      if (!reference || mine.left_with.empty() || !closed_well(w)) continue;
      check_values(mine.left_with, mine.end(),
                   "the model that worker " + std::to_string(w) + " has left with", *reference, &found);
    }
    // The others may have ended before a worker that joined has saved.
    for (int w = 0; w < job_.all() && saved_.step > 0; ++w) {
      const WorkerRecord& mine = seen[static_cast<size_t>(w)];
      if (survives(w) && finished(w) && mine.end() >= saved_.step)
        check_values(saved_.values, saved_.step, "the checkpoint", mine, &found);
    }
    return found;
  }

  // Checks values that belong to the time after the first `end` steps. Each later update of a step's element
  // comes from its momentum alone, so its value tells of lost state.
  void check_values(const std::vector<float>& values, int end, const std::string& name,
                    const WorkerRecord& reference, std::vector<std::string>* found) const {
    std::map<int, CompletedStep> steps = reference.last_steps;
    for (size_t k = 0; k < reference.steps.size(); ++k)
      steps[reference.first + static_cast<int>(k)] = reference.steps[k];
    for (int k = reference.first; k < job_.steps; ++k) {
      const double mean = used(steps.at(k)) / steps.at(k).result.weight;
      double momentum = mean, value = 0;
      for (auto at = steps.find(k); at != steps.end() && at->first < end; ++at) {
        if (!at->second.result.applied) continue;
        value -= momentum;
        momentum *= job_.momentum;
      }
      const float seen_value =
          values.at(static_cast<size_t>(k) * (job_.elements / static_cast<size_t>(job_.steps)));
      if (std::abs(seen_value - value) > 1e-4 * mean)
        found->push_back("in " + name + " the element of step " + std::to_string(k) + " is " +
                         std::to_string(seen_value) + " instead of " + std::to_string(value));
    }
  }

  // The worker's session was closed when all others had its last step.
  bool closed_well(int worker) const {
    const NotedCall* const close = cluster_->call(worker, "close");
    return close && close->status.ok() && !left_unconfirmed(worker);
  }

  // dsgd_close has warned that others may repeat the worker's last step.
  bool left_unconfirmed(int worker) const {
    const auto& log = cluster_->log(worker);
    return std::any_of(log.begin(), log.end(), [](const std::string& line) {
      return line.find("not all workers have confirmed the last step") != line.npos;
    });
  }

  // Whether the job has left a checkpoint of a step.
  bool saved() const { return saved_.step > 0; }

  // The others had made their last step, and closed their sessions, before this worker took part in one. A
  // head that is started after that waits for the workers of a new job.
  bool came_too_late(int worker) const {
    const NotedCall* failure = cluster_->first_failure(worker);
    return worker >= job_.workers && failure && seen[static_cast<size_t>(worker)].steps.empty() &&
           (failure->status.code() == Code::kUnreachable || failure->status.code() == Code::kWorkerLost ||
            failure->status.message().find("the job at this head is over") != std::string::npos ||
            (failure->status.code() == Code::kTimeout && !job_.head_losses.empty()));
  }
  // Every sample has been used once in each epoch, and the values say so, too.
  void check_samples(const WorkerRecord& reference, std::vector<std::string>* found) const {
    std::map<int, CompletedStep> steps = reference.last_steps;
    for (size_t k = 0; k < reference.steps.size(); ++k) steps[static_cast<int>(k)] = reference.steps[k];
    std::map<Sample, int> times;
    std::vector<double> values(static_cast<size_t>(job_.samples)), momenta(values.size());
    for (const auto& [k, made] : steps) {
      std::vector<double> sums(values.size());
      for (int w = 0; w < job_.all(); ++w) {
        const auto& drawn = seen[static_cast<size_t>(w)].drawn;
        if ((used(made) >> w & 1) == 0 || drawn.count(k) == 0) continue;
        for (const Sample& sample : drawn.at(k)) {
          ++times[sample];
          ++sums[static_cast<size_t>(sample.index)];
        }
      }
      for (size_t i = 0; i < values.size() && made.result.applied; ++i) {
        momenta[i] = job_.momentum * momenta[i] + sums[i] / made.result.weight;
        values[i] -= momenta[i];
      }
    }
    for (int64_t index = 0; index < job_.samples; ++index) {
      for (int epoch = 0; epoch < job_.epochs; ++epoch) {
        const int count = times[{static_cast<uint64_t>(epoch), index}];
        if (count != 1)
          found->push_back("sample " + std::to_string(index) + " of epoch " + std::to_string(epoch) +
                           " was used " + std::to_string(count) + " times");
      }
      const double value = reference.sums[static_cast<size_t>(index)];
      if (std::abs(value - values[static_cast<size_t>(index)]) > 1e-4)
        found->push_back("the value of sample " + std::to_string(index) + " is " + std::to_string(value) +
                         " instead of " + std::to_string(values[static_cast<size_t>(index)]));
    }
  }
  // From the first loss to the end of the first step without that worker, on the last survivor that makes it.
  Duration recovery() const {
    Duration longest{};
    for (int w = 0; w < job_.all(); ++w) {
      const WorkerRecord& of = seen[static_cast<size_t>(w)];
      for (size_t i = 0; i < of.steps.size() && survives(w); ++i) {
        if ((used(of.steps[i]) >> job_.losses[0].worker & 1) != 0) continue;
        const NotedCall* const step =
            cluster_->call(w, "step " + std::to_string(of.first + static_cast<int>(i)));
        longest = std::max(longest, Duration(step->ended - *first_loss_));
        break;
      }
    }
    return longest;
  }
  int joined() const {
    int count = 0;
    for (int w = job_.workers; w < job_.all(); ++w) count += !seen[static_cast<size_t>(w)].steps.empty();
    return count;
  }

 private:
  static constexpr const char* kCheckpoints = "./checkpoints";

  // Loads the newest checkpoint into another job, of one worker.
  void load_checkpoint() {
    ClusterOptions options{.workers = 1, .separate_head = true, .files = true, .disk = disk_};
    Cluster loader(options, [this](Cluster& cluster, Session& session, int worker) {
      WorkerRecord record;
      if (!session.set_optimizer("sgd", "lr=1 momentum=" + std::to_string(job_.momentum)).ok()) std::abort();
      const auto count = static_cast<int64_t>(job_.elements);
      Parameter* const parameter = session.add_parameter("p", DType::kFloat32, {&count, 1}, true).value();
      Replica* const replica = session.add_replica("cpu").value();
      const auto memory = session.alloc(replica, parameter).value();
      std::shared_ptr<TensorMemory> sums;
      if (job_.samples > 0) {
        const int64_t size = job_.samples + kMaxSteps;
        sums =
            session
                .alloc(replica, session.add_parameter("samples", DType::kFloat32, {&size, 1}, true).value())
                .value();
        (void)session.add_shard(static_cast<uint64_t>(job_.samples), 3, true);
      }
      if (!cluster.note(worker, "start", [&] { return session.start(); })) return;
      const auto call = session.load_checkpoint(kCheckpoints, Session::Mode::kWait);
      const Status loaded = wait_for(session, call);
      if (loaded.code() == Code::kNotFound) return;
      EXPECT_TRUE(loaded.ok()) << loaded.message();
      saved_.step = static_cast<int>(session.info().steps);
      const float* const value = static_cast<const float*>(memory->value);
      saved_.values.assign(value, value + job_.elements);
    });
    EXPECT_TRUE(loader.run_until_ended(60s)) << loader.history(0);
  }

  // The workers that have made this step and were never lost.
  int survivors_of(int step) const {
    int survivors = 0;
    for (int w = 0; w < job_.all(); ++w) {
      const WorkerRecord& of = seen[static_cast<size_t>(w)];
      const auto leaves = job_.leaves.find(w);
      const bool has_left = leaves != job_.leaves.end() && step >= leaves->second;
      if (survives(w) && !has_left && !of.steps.empty() && of.first <= step) survivors += 1 << w;
    }
    return survivors;
  }

  // Time until the last head is back. A worker is paused for longer than this: otherwise it could resume
  // before any head has missed it, and stay in the job, while a worker that could not reach it is lost.
  Duration without_head() const {
    return job_.head_losses.empty() ? Duration{}
                                    : job_.head_losses.back().after + job_.head_losses.back().down;
  }

  void lose(const Loss& loss) {
    Cluster& cluster = *cluster_;
    if (cluster.finished(loss.worker)) return;
    lost_.insert(loss.worker);
    if (!first_loss_) first_loss_ = cluster.world.now();
    const transport::ProcessId process = cluster.process(loss.worker);
    switch (loss.kind) {
      case Loss::kKill:
        return cluster.world.kill(process, Death::kReset);
      case Loss::kMachineDies:
        return cluster.world.kill(process, Death::kSilent);
      case Loss::kPause:
        cluster.world.pause(process);
        return cluster.world.at(cluster.world.now() + 4 * kLease + without_head(),
                                [&cluster, process] { cluster.world.resume(process); });
      case Loss::kCut:
        cut_off_.insert(loss.worker);
        return cluster.world.isolate(process);
      case Loss::kFails:
        if (Session* const session = cluster.session(loss.worker)) (void)session->fail("no more memory");
        return;
    }
  }

  const Job job_;
  std::set<int> lost_, cut_off_;
  std::optional<transport::Time> first_loss_;
  const std::shared_ptr<dsgd_test::MemoryDisk> disk_ = std::make_shared<dsgd_test::MemoryDisk>();
  struct {
    int step = 0;
    std::vector<float> values;
  } saved_;

 public:
  std::vector<WorkerRecord> seen;
  bool ended = false;

 private:
  std::optional<Cluster> cluster_;
};

struct Count {
  int copied = 0, joined = 0;  // jobs in which a worker had to copy a step; workers that joined
  int saved = 0;               // jobs that left a checkpoint
};
Count expect_right(const Job& job) {
  SCOPED_TRACE(job.describe());
  const Outcome outcome(job);
  EXPECT_TRUE(outcome.ended) << "a worker hangs";
  for (const std::string& problem : outcome.problems()) ADD_FAILURE() << problem;
  return {outcome.copied(), outcome.joined(), outcome.saved()};
}

TEST(Join, AWorkerMayJoinAtAnyMoment) {
  int joined = 0;
  for (Duration after = 0us; after < 20ms; after += kStride * 200us) {
    joined += expect_right({.workers = 2, .steps = 40, .joins = {after}}).joined;
    if (HasFailure()) return;
  }
  EXPECT_GT(joined, 50 / kStride);
}

// A step without weights compares all values. If a new view comes meanwhile, the step begins again, and so
// does the comparison.
TEST(Join, MayInterruptTheComparisonOfAllValues) {
  int joined = 0;
  for (Duration after = 6ms; after < 6300us; after += dsgd_test::one_of(1, 8) * 1us) {
    const Job job{.workers = 2, .steps = 17, .joins = {after}};
    SCOPED_TRACE(job.describe());
    const Outcome outcome(job);
    EXPECT_THAT(outcome.problems(), testing::IsEmpty());
    joined += outcome.finished(2) && outcome.seen[2].steps.empty();  // it came during steps without weights
    if (HasFailure()) return;
  }
  EXPECT_GT(joined, 10);
}

TEST(Join, EndsThePauseOfAJobWithTooFewWorkers) {
  for (Duration after = 0us; after < 8ms; after += kStride * 250us) {
    Job job{.steps = 40, .losses = {{1, after, Loss::kKill}}, .joins = {9ms}};
    job.min_workers = 3;
    job.settings["rejoin_timeout"] = "10s";
    SCOPED_TRACE(job.describe());
    const Outcome outcome(job);
    EXPECT_THAT(outcome.problems(), testing::IsEmpty());
    EXPECT_EQ(outcome.joined(), 1);
    for (const CompletedStep& made : outcome.seen[0].steps)
      EXPECT_EQ(made.result.weight, 3) << "no step has fewer";
    if (HasFailure()) return;
  }
}

TEST(Join, IsPossibleAfterAWorkerHasLeft) {
  int joined = 0;
  for (int leaver = 0; leaver < 3; ++leaver) {
    for (Duration after = 0us; after < 20ms; after += kStride * 400us) {
      Job job{.steps = 60, .leaves = {{leaver, 10}}, .joins = {after}};
      if (leaver == 1) job.losses = {{2, after + 1ms, Loss::kKill}};
      joined += expect_right(job).joined;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(joined, 100 / kStride);
}

// A view with the worker that joins would have fewer than min_workers, and could make no step.
TEST(Join, IsRefusedWhenSoManyHaveLeftThatTheJobEnds) {
  Job job{.workers = 4, .min_workers = 4, .steps = 1500, .leaves = {{0, 10}, {1, 10}}, .joins = {100ms}};
  job.delay = {2ms, 3ms};
  const Outcome outcome(job);
  ASSERT_TRUE(outcome.ended);
  EXPECT_THAT(outcome.problems(), testing::IsEmpty());
  EXPECT_TRUE(outcome.finished(2) && outcome.finished(3)) << outcome.cluster().history(2);
  const NotedCall* failure = outcome.cluster().first_failure(4);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status.code(), Code::kUnreachable);
  EXPECT_THAT(failure->status.message(), HasSubstr("the job at this head is ending"));
}

TEST(Join, IsWaitedForAsLongAsTheKeySays) {
  Job job{.losses = {{1, 2ms, Loss::kKill}}};
  job.min_workers = 3;
  job.settings["rejoin_timeout"] = "5s";
  Outcome outcome(job);
  ASSERT_TRUE(outcome.ended);
  const NotedCall* failure = outcome.cluster().first_failure(0);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status.code(), Code::kWorkerLost);
  EXPECT_THAT(failure->status.message(),
              HasSubstr("within 5.0 s (rejoin_timeout) not enough others have joined"));
  EXPECT_NEAR(std::chrono::duration<double>(failure->ended - failure->began).count(), 5, 0.2);
}

TEST(Loss, SurvivorsGoOnAfterAKillAtAnyMoment) {
  for (Duration after = 0us; after < 12ms; after += kStride * 150us) {
    for (int victim = 0; victim < 3; ++victim) {
      expect_right({.losses = {{victim, after, Loss::kKill}}});
      if (HasFailure()) return;
    }
  }
}

// Its program calls dsgd_fail, in a step or between two. All workers are told why.
TEST(Loss, OfAWorkerWhoseProgramFailsNamesTheReason) {
  for (const char* strategy : {"allreduce", "simple", "ps"}) {
    for (Duration after = 3ms; after < 12ms; after += kStride * 300us) {
      Job job{.losses = {{1, after, Loss::kFails}}};
      job.settings = {{"strategy", strategy}, {"copies", std::string(strategy) == "ps" ? "2" : "1"}};
      SCOPED_TRACE(job.describe());
      const Outcome outcome(job);
      ASSERT_TRUE(outcome.ended);
      EXPECT_THAT(outcome.problems(), testing::IsEmpty());
      const std::string reason = "rank 1 (host node2, pid 1001) failed: no more memory";
      const NotedCall* const failure = outcome.cluster().first_failure(1);
      ASSERT_TRUE(failure) << outcome.cluster().history(1);
      EXPECT_EQ(failure->status.code(), Code::kWorkerLost) << failure->status.message();
      EXPECT_EQ(failure->status.rank(), 1);
      EXPECT_THAT(failure->status.message(), HasSubstr(reason));
      for (const int other : {0, 2})
        EXPECT_THAT(outcome.cluster().log(other), testing::Contains(HasSubstr("workers: " + reason)));
      EXPECT_LT(outcome.recovery(), kLease / 4) << "nobody waits for the end of its lease";
      if (HasFailure()) return;
    }
  }
}

// A loss is found by the end of a connection or of a lease. Then the survivors need the head's view, each
// other's reports and, at most, one copy: a few round trips, of 2 ms here.
TEST(Loss, EndsWithinALeaseAndAFewRoundTrips) {
  for (const Loss::Kind kind : {Loss::kKill, Loss::kMachineDies, Loss::kPause, Loss::kCut}) {
    for (const char* strategy : {"allreduce", "simple", "ps"}) {
      std::vector<Duration> times;
      for (Duration after = 5ms; after < 65ms; after += kStride * 500us) {
        for (int victim = 0; victim < 3; ++victim) {
          Job job{.losses = {{victim, after, kind}}};
          job.settings = {{"strategy", strategy}, {"copies", std::string(strategy) == "ps" ? "2" : "1"}};
          job.delay = {1ms, 1ms};
          SCOPED_TRACE(job.describe());
          const Outcome outcome(job);
          EXPECT_TRUE(outcome.ended);
          for (const std::string& problem : outcome.problems()) ADD_FAILURE() << problem;
          times.push_back(outcome.recovery());
          if (HasFailure()) return;
        }
      }
      std::sort(times.begin(), times.end());
      std::printf("  %s, %s: median %.1f ms, longest %.1f ms of %zu\n", strategy, kKinds[kind],
                  1e-6 * static_cast<double>(times[times.size() / 2].count()),
                  1e-6 * static_cast<double>(times.back().count()), times.size());
      EXPECT_GT(times.front(), Duration{}) << "each loss came in time";
      // The lease, the head's second look, three round trips, and one for the exchange of `ps` with copies.
      EXPECT_LE(times.back(), kind == Loss::kKill ? 10ms : kLease + 10ms + 4 * 2ms);
    }
  }
}

// T8: a worker closes after a step that the others have not completed, one of them is lost, and the rest
// repeat the step.
TEST(Loss, OfTheOthersDoesNotChangeTheModelThatAWorkerTakesAlong) {
  for (Duration after = 0us; after < 6ms; after += kStride * 50us) {
    for (int victim = 0; victim < 3; ++victim) {
      expect_right({.steps = 5, .losses = {{victim, after, Loss::kKill}}, .closes_at_once = true});
      if (HasFailure()) return;
    }
  }
}

// Its peers and the head learn of it in any order.
TEST(Loss, OfAnOwnerThatClosesLeavesTheOthersToGoOnWithoutIt) {
  for (const char* strategy : {"simple", "ps"}) {
    for (int leaver = 0; leaver < 4; ++leaver) {
      for (uint64_t seed = 1; seed <= 40; seed += static_cast<uint64_t>(kStride)) {
        Job job{.workers = 4, .seed = seed, .leaves = {{leaver, 5}, {(leaver + 1) % 4, 15}}};
        job.settings = {{"strategy", strategy}, {"copies", std::string(strategy) == "ps" ? "2" : "1"}};
        job.delay = {0ms, 3ms};
        expect_right(job);
        if (HasFailure()) return;
      }
    }
  }
}

// The network splits while they wait until the step is final. The head chooses one of them, and the others
// make the step again without it.
TEST(Loss, OfAWorkerThatClosesIsReturnedByItsClose) {
  int told = 0;
  for (const char* strategy : {"allreduce", "simple", "ps"}) {
    for (Duration after = 2ms; after < 8ms; after += kStride * 25us) {
      Job job{.steps = 6, .split = {{2, after}}, .closes_at_once = true};
      job.settings = {{"strategy", strategy}, {"copies", std::string(strategy) == "ps" ? "3" : "1"}};
      SCOPED_TRACE(job.describe());
      const Outcome outcome(job);
      ASSERT_TRUE(outcome.ended);
      EXPECT_THAT(outcome.problems(), testing::IsEmpty());
      for (int w = 0; w < job.workers; ++w) {
        const NotedCall* const close = outcome.cluster().call(w, "close");
        if (!close || close->status.ok() || !outcome.finished(w)) continue;
        EXPECT_EQ(close->status.code(), Code::kEvicted) << close->status.message();
        ++told;
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(told, 0);
}

// One has closed its session, and another one is evicted in mid-step.
TEST(Loss, OfAWorkerThatHearsOfItFirstDoesNotFailTheOthers) {
  int evicted = 0;
  for (uint64_t seed = 1; seed <= 160; seed += dsgd_test::one_of(1, 7)) {
    Job job{.workers = 4, .seed = seed, .leaves = {{3, 5}}};
    job.pair_cut = {0, 1, 12ms + seed % 37 * 200us, true, false};
    job.delay = {0ms, 1ms};
    SCOPED_TRACE(job.describe());
    const Outcome outcome(job);
    ASSERT_TRUE(outcome.ended);
    EXPECT_THAT(outcome.problems(), testing::IsEmpty());
    for (int w : {0, 1}) evicted += !outcome.finished(w);
    if (HasFailure()) return;
  }
  EXPECT_GT(evicted, 0);
}

// A worker does not receive what another one answers to its dsgd_close. Meanwhile the third one aborts the
// job.
TEST(Loss, OfTheJobWhileAWorkerClosesIsReturnedByItsClose) {
  ClusterOptions options{.workers = 3, .separate_head = true};
  options.settings = {{"min_workers", "1"}, {"lease", "10s"}, {"stall_warning", "1s"}};
  Cluster cluster(options, [](Cluster& cluster, Session& session, int worker) {
    if (!Cluster::train(cluster, session, worker, 3)) return;
    if (worker == 0) cluster.world.block(cluster.process(0), cluster.process(1));
    cluster.pass_time(worker, worker == 1 ? 1ms : 2s);
    if (worker == 2) cluster.note(2, "abort", [&] { return session.abort("test"); });
  });
  ASSERT_TRUE(cluster.run_until_ended(60s));
  const NotedCall* const close = cluster.call(1, "close");
  ASSERT_TRUE(close);
  EXPECT_EQ(close->status.code(), Code::kAborted) << cluster.history(1);
  ASSERT_FALSE(cluster.warnings(1).empty());
  EXPECT_THAT(cluster.warnings(1)[0].text,
              AllOf(HasSubstr("dsgd_close has not ended after 1 s: rank 0 (worker "),
                    HasSubstr(" has not completed the last step of this worker")));
}

// As by Ctrl-Z, or on a machine that is suspended.
TEST(Loss, DoesNotFollowFromAPauseOfTheHeadAndAllWorkers) {
  for (const char* min_workers : {"1", "3"}) {
    for (Duration after = 5ms; after < 45ms; after += kStride * 1ms) {
      SCOPED_TRACE(std::string("min_workers ") + min_workers + ", after " + std::to_string(after / 1us) +
                   " us");
      ClusterOptions options{.workers = 3, .separate_head = true};
      options.settings = {{"min_workers", min_workers}, {"lease", "500ms"}, {"step_timeout", "20s"}};
      Cluster cluster(options, [](Cluster& cluster, Session& session, int worker) {
        Cluster::train(cluster, session, worker, 60);
      });
      for (int worker = 0; worker < 3; ++worker) ASSERT_TRUE(cluster.run_until_noted(worker, "open", 10s));
      cluster.world.run_for(after);
      for (int process = -1; process < 3; ++process) cluster.world.pause(cluster.process(process));
      cluster.world.run_for(2s);
      for (int process = 2; process >= -1; --process) cluster.world.resume(cluster.process(process));
      ASSERT_TRUE(cluster.run_until_ended(60s));
      for (int worker = 0; worker < 3; ++worker)
        EXPECT_FALSE(cluster.first_failure(worker)) << cluster.history(worker);
      if (HasFailure()) return;
    }
  }
}

TEST(Loss, MayTakeLongerThanAStallWarning) {
  Job job{.losses = {{0, 5ms, Loss::kKill}}, .pair_cut = {{1, 2, 5ms}}};
  job.settings = {{"lease", "5s"}, {"stall_warning", "1s"}};
  const Outcome outcome(job);
  ASSERT_TRUE(outcome.ended);
  int warned = 0;
  for (const int worker : {1, 2}) {
    for (const NotedWarning& warning : outcome.cluster().warnings(worker))
      warned += warning.text.starts_with("the change to view 2 has not ended after 1 s: rank ");
  }
  EXPECT_GT(warned, 0) << outcome.cluster().histories();
}

// They close at the same time as the others, which may report them before or after.
TEST(Loss, OfAnOwnerThatClosesDoesNotFailAJobThatEndsThen) {
  for (const char* strategy : {"simple", "ps"}) {
    for (int leaver = 0; leaver < 4; ++leaver) {
      for (int steps = 6; steps < 30; steps += kStride) {
        Job job{.workers = 4, .steps = steps, .leaves = {{leaver, 5}}, .closes_at_once = true};
        job.settings = {{"strategy", strategy}, {"copies", std::string(strategy) == "ps" ? "2" : "1"}};
        expect_right(job);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Loss, OfAWorkerThatClosesInAStepLeavesTheOthersToMakeIt) {
  for (const char* strategy : {"allreduce", "simple", "ps"}) {
    for (int leaver = 0; leaver < 3; ++leaver) {
      for (uint64_t seed = 1; seed <= 24; seed += static_cast<uint64_t>(kStride)) {
        Job job{.seed = seed, .leaves = {{leaver, 5}}, .leaves_in_step = true};
        job.settings = {{"strategy", strategy}, {"copies", std::string(strategy) == "ps" ? "2" : "1"}};
        job.delay = {0ms, 3ms};
        expect_right(job);
        if (HasFailure()) return;
      }
    }
  }
}

// The head has published a view with it when they leave in the view before, or while it enters that view.
TEST(Join, WhileTheOthersEndTheJobDoesNotFailIt) {
  int joined = 0;
  for (const int steps : {3, 6}) {
    for (Duration after = 1ms; after < 11ms; after += kStride * 50us) {
      Job job{.workers = 2, .steps = steps, .joins = {after}, .closes_at_once = true};
      job.delay = {0ms, 1ms};
      joined += expect_right(job).joined;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(joined, 0);
}

// One worker has closed in good order, and all others that hold values are lost while another one joins.
TEST(Join, WhileTheLastWorkersAreLostFailsTheJobUnlessItHasTheState) {
  int joined = 0, failed = 0;
  for (Duration after = 24ms; after < 44ms; after += kStride * 100us) {
    Job job{.workers = 3, .steps = 100, .losses = {{1, after, Loss::kKill}, {2, after, Loss::kKill}}};
    job.leaves = {{0, 3}};
    job.joins = {20ms};
    job.delay = {0ms, 1ms};
    SCOPED_TRACE(job.describe());
    const Outcome outcome(job);
    ASSERT_TRUE(outcome.ended);
    ASSERT_FALSE(outcome.finished(1));
    const auto& result = outcome.cluster().head_result();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->ok(), outcome.finished(3)) << result->message() << outcome.cluster().histories();
    ++(outcome.finished(3) ? joined : failed);
    if (HasFailure()) return;
  }
  EXPECT_GT(joined, 0);
  EXPECT_GT(failed, 0);
}

TEST(Loss, OfAnyWorkerLeavesEverySampleToBeUsedOnce) {
  for (Duration after = 0us; after < 12ms; after += kStride * 150us) {
    for (int victim = 0; victim < 3; ++victim) {
      expect_right({.steps = 10,
                    .losses = {{victim, after, Loss::kKill}},
                    .joins = {after + 2ms * victim},
                    .samples = 200,
                    .epochs = 2});
      if (HasFailure()) return;
    }
  }
}

// The job has a fixed size, so that any loss would end it.
TEST(HeadLoss, WorkersTrainOnWhileTheHeadIsRestartedAtAnyMoment) {
  for (Duration after = 0us; after < 12ms; after += kStride * 150us) {
    const Job job{.min_workers = 3, .head_losses = {{after, 3ms, Death::kReset}}, .delay = {50us, 300us}};
    expect_right(job);
    if (HasFailure()) return;
  }
}

TEST(HeadLoss, TheHeadThatComesBackNamesTheWorkersThatWereLost) {
  for (Duration after = 0us; after < 12ms; after += kStride * 400us) {
    expect_right({.losses = {{1, after, Loss::kKill}}, .head_losses = {{5ms, 4ms, Death::kReset}}});
    expect_right({.losses = {{1, after, Loss::kKill}}, .head_losses = {{5ms, 900ms, Death::kSilent}}});
    if (HasFailure()) return;
  }
}

TEST(HeadLoss, WorkersFindTheHeadThatServesOnAnotherMachine) {
  for (Duration after = 0us; after < 12ms; after += kStride * 400us) {
    for (const Death death : {Death::kReset, Death::kSilent}) {
      expect_right({.min_workers = 3,
                    .steps = 300,
                    .head_losses = {{after, 3ms, death}, {700ms, 2ms, death}, {1500ms, 5ms, death}},
                    .head_machines = 3,
                    .delay = {1ms, 3ms}});
      expect_right({.losses = {{1, after, Loss::kKill}},
                    .head_losses = {{5ms, 4ms, death}},
                    .head_machines = 2,
                    .joins = {after + 6ms}});
    }
    if (HasFailure()) return;
  }
}

// A lease is 500 ms.
TEST(HeadLoss, WorkersOutlastAHeadOfAnotherJobAtTheAddress) {
  for (Duration after = 0us; after < 12ms; after += kStride * 400us) {
    for (const Death death : {Death::kReset, Death::kSilent}) {
      expect_right({.min_workers = 3,
                    .steps = 300,
                    .head_losses = {{after, 1200ms, death, true}},
                    .delay = {1ms, 3ms}});
      expect_right({.min_workers = 3,
                    .steps = 300,
                    .head_losses = {{after, 700ms, death, true}},
                    .head_machines = 2,
                    .delay = {1ms, 3ms}});
    }
    if (HasFailure()) return;
  }
}

TEST(HeadLoss, TheErrorNamesTheLastRefusalOfEachAddress) {
  Outcome outcome({.min_workers = 3,
                   .steps = 3000,
                   .head_losses = {{2ms, 100s, Death::kReset, true}},
                   .head_machines = 2,
                   .delay = {5ms, 10ms}});
  ASSERT_TRUE(outcome.ended);
  for (int worker = 0; worker < 3; ++worker) {
    const NotedCall* failure = outcome.cluster().first_failure(worker);
    ASSERT_TRUE(failure) << outcome.cluster().history(worker);
    EXPECT_EQ(failure->status.code(), Code::kWorkerLost);
    EXPECT_THAT(failure->status.message(),
                testing::AllOf(HasSubstr("it has not come back within 5.0 s (head_timeout): "),
                               HasSubstr("node0:7700: worker '"), HasSubstr("its token is wrong"),
                               HasSubstr("; spare1:7700: ")));
  }
}

TEST(HeadLoss, ThatLastsForHeadTimeoutEndsTheJob) {
  Outcome outcome(
      {.min_workers = 3, .steps = 2000, .head_losses = {{2ms, 100s, Death::kReset}}, .delay = {5ms, 10ms}});
  ASSERT_TRUE(outcome.ended);
  for (int worker = 0; worker < 3; ++worker) {
    const NotedCall* failure = outcome.cluster().first_failure(worker);
    ASSERT_TRUE(failure) << outcome.cluster().history(worker);
    EXPECT_EQ(failure->status.code(), Code::kWorkerLost);
    EXPECT_THAT(failure->status.message(), HasSubstr("it has not come back within 5.0 s (head_timeout)"));
    EXPECT_GT(outcome.seen[static_cast<size_t>(worker)].steps.size(), 50u) << "training went on meanwhile";
  }
}

TEST(Loss, TheResultTellsTheNewView) {
  Outcome outcome({.steps = 10, .losses = {{1, 2ms, Loss::kKill}}});
  ASSERT_TRUE(outcome.ended);
  const CompletedStep &first = outcome.seen[2].steps.front(), &last = outcome.seen[2].steps.back();
  EXPECT_EQ(first.result.view, 1);
  EXPECT_EQ(first.result.size, 3);
  EXPECT_EQ(last.result.view, 2);
  EXPECT_EQ(last.result.size, 2);
  EXPECT_EQ(used(last), 0b101);
}

// The head decides at once, and tells the workers only when its disk has the view.
TEST(Loss, IsWaitedForWhileTheHeadCannotStoreTheView) {
  for (const Loss::Kind kind : {Loss::kKill, Loss::kMachineDies, Loss::kPause, Loss::kCut}) {
    for (const Duration lasts : {4 * kLease, 20 * kLease}) {
      Job job{.losses = {{1, 5ms, kind}}, .disk_stall = DiskStall{4ms, lasts}};
      SCOPED_TRACE(job.describe());
      const Outcome outcome(job);
      EXPECT_TRUE(outcome.ended) << "a worker hangs";
      EXPECT_THAT(outcome.problems(), testing::IsEmpty());
      EXPECT_GT(outcome.recovery(), lasts - 1ms);
    }
  }
}

TEST(Loss, FewerThanMinWorkersAreAnError) {
  Outcome outcome({.workers = 3, .min_workers = 3, .losses = {{1, 2ms, Loss::kKill}}});
  ASSERT_TRUE(outcome.ended);
  for (int worker : {0, 2}) {
    const NotedCall* failure = outcome.cluster().first_failure(worker);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->status.code(), Code::kWorkerLost);
    EXPECT_EQ(failure->status.rank(), 1);
  }
}

TEST(Loss, AWorkerThatWasStoppedIsToldThatTheOthersWentOn) {
  Outcome outcome({.steps = 500, .losses = {{1, 2ms, Loss::kPause}}, .delay = {5ms, 10ms}});
  ASSERT_TRUE(outcome.ended);
  EXPECT_THAT(outcome.problems(), testing::IsEmpty());
  const NotedCall* failure = outcome.cluster().first_failure(1);
  ASSERT_TRUE(failure) << outcome.cluster().history(1);
  EXPECT_EQ(failure->status.code(), Code::kEvicted) << failure->status.message();
  EXPECT_THAT(failure->status.message(), HasSubstr("which goes on without it"));
  const NotedCall* const close = outcome.cluster().call(1, "close");
  ASSERT_TRUE(close);
  EXPECT_EQ(close->status.code(), Code::kEvicted) << "whether a step or a call between two has failed";
}

// While it is stopped, the head tells it of the other loss. So no call of it waits when it is evicted.
TEST(Loss, AWorkerThatWasStoppedDuringAnotherLossIsToldThatItWasEvicted) {
  for (Duration after = 1ms; after < 40ms; after += 4ms) {
    Outcome outcome({.workers = 4,
                     .steps = 500,
                     .losses = {{1, 2ms, Loss::kPause}, {2, 2ms + after, Loss::kKill}},
                     .delay = {5ms, 10ms}});
    SCOPED_TRACE(after.count());
    ASSERT_TRUE(outcome.ended);
    EXPECT_THAT(outcome.problems(), testing::IsEmpty());
    const NotedCall* failure = outcome.cluster().first_failure(1);
    ASSERT_TRUE(failure) << outcome.cluster().history(1);
    EXPECT_EQ(failure->status.code(), Code::kEvicted) << failure->status.message();
  }
}

TEST(Loss, IsRefusedIfOneWorkerAloneHoldsTheOptimizerState) {
  const auto expect_refused = [](const Job& job, const std::string& what) {
    Outcome outcome(job);
    ASSERT_TRUE(outcome.ended);
    const NotedCall* failure = outcome.cluster().first_failure(0);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->name, "start");
    EXPECT_EQ(failure->status.code(), Code::kUnsupported);
    EXPECT_EQ(failure->status.parameter(), "min_workers");
    EXPECT_THAT(failure->status.message(), HasSubstr(what));
  };
  expect_refused({.settings = {{"strategy", "ps"}}}, "strategy 'ps' keeps one copy of the optimizer's state");
  expect_refused({.settings = {{"strategy", "ps"}}}, "set copies=2 or more, use allreduce or simple");
  expect_refused({.settings = {{"strategy", "ps"}}, .optimizer = "adam"}, "keeps one copy");
  Outcome few({.settings = {{"strategy", "ps"}, {"copies", "3"}, {"servers", "2"}}});
  const NotedCall* failure = few.cluster().first_failure(0);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status.code(), Code::kInvalidArgument);
  EXPECT_EQ(failure->status.parameter(), "copies");
  EXPECT_THAT(failure->status.message(), HasSubstr("needs 3 servers, and the key servers is 2"));
  expect_refused({.optimizer = "none"}, "optimizer 'none' leaves the update to the host");
}

Job with_copies(int workers, int copies) {
  Job job;
  job.workers = workers;
  job.elements = 40'000;
  job.settings = {{"strategy", "ps"}, {"copies", std::to_string(copies)}, {"bucket_size", "16K"}};
  return job;
}

// A step is final only when the copies have its state. They have it once, and a silent copy is not left out.
TEST(Copies, OutliveTheLossOfAnyWorkerAtAnyMoment) {
  for (const Loss::Kind kind : {Loss::kKill, Loss::kPause}) {
    for (Duration after = 0us; after < 12ms; after += kStride * (kind == Loss::kKill ? 300us : 1500us)) {
      for (int victim = 0; victim < 3; ++victim) {
        Job job = with_copies(3, 2);
        job.losses = {{victim, after, kind}};
        expect_right(job);
        if (HasFailure()) return;
      }
    }
  }
}

// A worker counts as a holder of a range only when it has the whole range of the present step.
// If both copies are lost, the job fails and says so.
TEST(Copies, OfARangeAreMadeAnewOrTheLossOfAllIsAnError) {
  int right = 0, lost = 0;
  for (Duration between = 0us; between < 4ms; between += kStride * 100us) {
    for (int victim = 1; victim < 4; ++victim) {
      Job job = with_copies(4, 2);
      job.settings["receive_memory"] = "64M";  // with less, these losses come before the first copies
      job.losses = {{0, 3ms, Loss::kKill}, {victim, 3ms + between, Loss::kKill}};
      SCOPED_TRACE(job.describe());
      const Outcome outcome(job);
      ASSERT_TRUE(outcome.ended);
      const int left = victim == 1 ? 2 : 1;
      const NotedCall* failure = outcome.cluster().first_failure(left);
      if (!failure) {
        ++right;
        EXPECT_THAT(outcome.problems(), testing::IsEmpty());
      } else {
        ++lost;
        EXPECT_EQ(failure->status.code(), Code::kWorkerLost);
        EXPECT_EQ(failure->status.parameter(), "p");
        EXPECT_THAT(failure->status.message(),
                    HasSubstr("no worker that is left has the optimizer's state of"));
        EXPECT_THAT(
            failure->status.message(),
            HasSubstr("since ps copies=2 outlives the loss of 1 worker at once; start the job again from a "
                      "checkpoint, with more copies"));
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(right, 0);
  EXPECT_GT(lost, 0);
}

TEST(Copies, AreNeitherNeededNorMadeWithoutOptimizerState) {
  for (Duration after = 0us; after < 12ms; after += kStride * 600us) {
    for (int victim = 0; victim < 3; ++victim) {
      Job job = with_copies(3, 1);
      job.momentum = 0;
      job.losses = {{victim, after, Loss::kKill}};
      job.joins = {after + 1ms};
      expect_right(job);
      if (HasFailure()) return;
    }
  }
  Duration times[2];
  for (const int copies : {1, 2}) {
    Job job = with_copies(3, copies);
    job.momentum = 0;
    job.elements = 400;
    job.delay = {1ms, 1ms};
    const Outcome outcome(job);
    const NotedCall* step = outcome.cluster().call(0, "step 5");
    ASSERT_TRUE(step && step->status.ok()) << outcome.cluster().history(0);
    times[copies - 1] = step->ended - step->began;
  }
  EXPECT_LT(times[1], times[0] + 500us) << "there is no further exchange";
}

TEST(Copies, OutliveAnyNumberOfLossesOneAfterTheOther) {
  Job job = with_copies(5, 2);
  job.steps = 200;
  job.delay = {1ms, 2ms};
  job.losses = {
      {0, 100ms, Loss::kKill}, {3, 400ms, Loss::kKill}, {1, 700ms, Loss::kKill}, {4, 1s, Loss::kKill}};
  job.joins = {250ms, 600ms};
  EXPECT_EQ(expect_right(job).joined, 2);
}

TEST(Copies, MoveToAWorkerThatJoinsAndOutliveALossAtAnyMomentThen) {
  int joined = 0;
  for (Duration after = 0us; after < 6ms; after += kStride * 150us) {
    for (int victim = 0; victim < 2; ++victim) {
      Job job = with_copies(3, 2);
      job.steps = 40;
      job.joins = {2ms};
      job.losses = {{victim, 2ms + after, Loss::kKill}};
      joined += expect_right(job).joined;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(joined, 40 / kStride);
}

// The loss of worker 0 changes all ranks, and the worker that joins has another number than its rank.
TEST(Copies, MoveOnlyFromAWorkerThatIsLostAndToOneThatJoins) {
  if (dsgd_test::kSanitized) GTEST_SKIP() << "a large model, for a minute";
  Job job = with_copies(5, 2);
  job.settings["receive_memory"] = "64M";  // so that steps are short and the worker joins before the last
  job.elements = 400'000;
  job.steps = 200;
  job.losses = {{0, 20ms, Loss::kKill}};
  job.joins = {200ms};
  const Outcome outcome(job);
  EXPECT_THAT(outcome.problems(), testing::IsEmpty());
  std::map<size_t, size_t> moved;  // bytes, by view
  for (int worker = 1; worker <= 5; ++worker) {
    for (const std::string& line : outcome.cluster().log(worker)) {
      size_t nbytes = 0, view = 0;
      if (std::sscanf(line.c_str(), "this worker receives %zu bytes of optimizer state for view %zu", &nbytes,
                      &view) == 2)
        moved[view] += nbytes;
    }
  }
  EXPECT_EQ(moved.size(), 2u);
  const double state = static_cast<double>(job.elements) * sizeof(float);
  for (const auto& [view, nbytes] : moved)
    EXPECT_NEAR(static_cast<double>(nbytes), state * 2 / 5, state / 10) << "view " << view;
}

// Worker 0 has given up ranges for the view with the joining worker, which has not heard of that view yet.
// The state is still all zeros, so nobody has to send it.
TEST(Copies, OfAStateOfZerosNeedNotBeSent) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(150 / dsgd_test::one_of(5, 10)); ++seed) {
    Job job = with_copies(2, 2);
    job.seed = seed;
    job.steps = 3;
    job.elements = 191'717;
    job.joins = {5ms};
    job.delay = {20us, 500us, 0.05, 30ms};
    job.losses = {{1, 11ms, Loss::kPause}};
    expect_right(job);
    if (HasFailure()) return;
  }
}

// Between steps, and one worker is lost later.
TEST(Copies, AreMadeAndGivenUpByAChangeOfStrategy) {
  for (const int victim : {0, 1, 2}) {
    for (const char* strategy : {"allreduce", "ps"}) {
      Job job = with_copies(3, 2);
      job.settings["strategy"] = strategy;
      job.changes = true;
      job.steps = 100;
      job.losses = {{victim, 25ms, Loss::kKill}};
      SCOPED_TRACE(job.describe());
      const Outcome outcome(job);
      EXPECT_THAT(outcome.problems(), testing::IsEmpty());
      const int other = victim == 0 ? 1 : 0;
      ASSERT_TRUE(outcome.finished(other));
      EXPECT_EQ(outcome.seen[static_cast<size_t>(other)].steps[12].result.size, 3)
          << "the changes came before";
      EXPECT_EQ(outcome.seen[static_cast<size_t>(other)].steps.back().result.size, 2)
          << "the loss came after";
    }
  }
}

Job draw(uint64_t seed, Random random) {
  Job job;
  job.seed = seed;
  job.workers = 2 + static_cast<int>(random.below(4));
  job.steps = 10 + static_cast<int>(random.below(20));
  // Large models are slow, so only one seed in seven may have one.
  job.elements = static_cast<size_t>(job.steps) +
                 random.below(random.chance(0.3) ? (seed % 7 == 0 ? 200'000 : 20'000) : 3000);
  job.overlapped = random.chance(0.5);
  job.metrics = random.chance(0.4);
#ifdef DSGD_TEST_CUDA
  job.gpus = random.chance(0.4);
#endif
  static const char* const kAlgorithms[] = {"auto", "direct", "halving_doubling", "ring", "doubling", "tree"};
  job.settings["algorithm"] = kAlgorithms[random.below(std::size(kAlgorithms))];
  if (random.chance(0.3)) job.settings["strategy"] = "simple";
  if (random.chance(0.2)) {
    job.settings["reproducible"] = "1";
  } else if (random.chance(0.2)) {
    job.settings["wire"] = "bf16";  // these gradients and their sums are exact in it
    job.settings["algorithm"] = "direct";
  }
  if (random.chance(0.2)) job.settings["gradient_norm"] = "1";
  if (random.chance(0.2)) job.settings["nonfinite"] = "skip";
  job.settings["bucket_size"] = random.chance(0.5) ? "16K" : "4M";
  const std::string& algorithm = job.settings["algorithm"];
  if (seed % 2 == 0 && (algorithm == "auto" || algorithm == "direct") && !job.settings.count("reproducible"))
    job.settings["wire"] = "bf16";  // the sums are exact in it
  if (random.chance(0.3)) job.delay = {20us, 500us, 0.05, 30ms};
  const int losses = 1 + static_cast<int>(random.below(static_cast<uint64_t>(job.workers - 1)));
  std::vector<int> workers;
  for (int w = 0; w < job.workers; ++w) workers.push_back(w);
  for (int i = 0; i < losses; ++i) {
    const size_t at = random.below(workers.size());
    job.losses.push_back({workers[at], random.between(0us, random.chance(0.5) ? 4ms : 30ms),
                          static_cast<Loss::Kind>(random.below(4))});
    if (i > 0 && random.chance(0.5))
      job.losses.back().after = job.losses[0].after + random.between(0us, 800ms);
    workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(at));
  }
  job.closes_at_once = seed % 5 == 0;
  // Drawn last, so that the jobs of earlier versions of this test stay as they were.
  if (random.chance(0.5)) {
    for (uint64_t joins = 1 + random.below(2); joins > 0; --joins)
      job.joins.push_back(random.between(0us, random.chance(0.5) ? 20ms : 200ms));
  }
  if (!job.closes_at_once && random.chance(0.6)) {
    job.samples = static_cast<int64_t>(random.below(400));
    job.epochs = job.samples > 0 ? 1 + static_cast<int>(random.below(3)) : 1;
    job.ahead = random.chance(0.3);
  }
  if (random.chance(0.4)) {
    Duration after{};
    for (uint64_t losses = 1 + random.below(3); losses > 0; --losses) {
      after += random.between(0us, random.chance(0.7) ? 10ms : 700ms);
      const Duration down = random.between(1us, random.chance(0.7) ? 30ms : 1500ms);
      job.head_losses.push_back({after, down, random.chance(0.7) ? Death::kReset : Death::kSilent});
      after += down;
    }
    // At a head that comes after the job's end they would begin another one.
    if (job.joins.size() >= static_cast<size_t>(job.workers)) job.joins.pop_back();
    if (random.chance(0.3)) job.losses.clear();
    if (random.chance(0.5)) job.delay = {500us, 3ms};
  }
  if (random.chance(0.4)) {
    job.settings["strategy"] = "ps";
    job.settings["copies"] = std::to_string(losses + 1);  // all may be lost at once
    if (random.chance(0.3)) job.settings["servers"] = std::to_string(std::max(losses + 1, 2));
  }
  if (job.samples == 0 && !job.metrics) {
    for (int w = 0; w < job.workers; ++w) {
      const bool is_lost = std::any_of(job.losses.begin(), job.losses.end(),
                                       [w](const Loss& loss) { return loss.worker == w; });
      if (!is_lost && w != workers.front() && random.chance(0.3))
        job.leaves[w] = static_cast<int>(random.below(static_cast<uint64_t>(job.steps)));
    }
  }
  if (random.chance(0.2)) {
    PairCut cut{workers.front(), 0, random.between(0us, random.chance(0.7) ? 10ms : 100ms),
                random.chance(0.7), true};
    cut.back = !cut.there || random.chance(0.5);
    cut.other = static_cast<int>(random.below(static_cast<uint64_t>(job.workers)));
    if (cut.other != cut.one && job.leaves.count(cut.other) == 0) job.pair_cut = cut;
  }
  if (!job.pair_cut && job.leaves.empty() && random.chance(0.1)) {
    job.split = {1 + static_cast<int>(random.below(static_cast<uint64_t>(job.workers - 1))),
                 random.between(0us, random.chance(0.7) ? 10ms : 100ms)};
  }
  if (job.settings.count("copies")) {  // all of these may go at once, too
    const int gone =
        job.split ? job.workers : losses + static_cast<int>(job.leaves.size()) + (job.pair_cut ? 1 : 0);
    const int copies = std::min(gone + 1, job.workers);
    job.settings["copies"] = std::to_string(copies);
    if (job.settings.count("servers")) job.settings["servers"] = std::to_string(std::max(copies, 2));
  }
  return job;
}

// At some of these moments the head is killed when it has published a view for a worker that joins, and a
// member of that view has closed its session in the view before.
TEST(HeadLoss, AViewWithAWorkerThatHasClosedIsFollowedByOneWithoutIt) {
  constexpr uint64_t kSeed = 341843;
  [[maybe_unused]] int times = 0;
  for (Duration later{}; later < 60ms; later += 1ms) {
    Job job = draw(kSeed, Random(kSeed * 0x9e3779b97f4a7c15u + 3));
    job.joins[0] += later;
    SCOPED_TRACE(job.describe());
    const Outcome outcome(job);
    EXPECT_TRUE(outcome.ended) << "a worker hangs";
    EXPECT_THAT(outcome.problems(), testing::IsEmpty());
    const auto& log = outcome.cluster().log(0);
    times += std::any_of(log.begin(), log.end(), [](const std::string& line) {
      return line.find("waits for a view without it") != line.npos;
    });
  }
#ifdef DSGD_TEST_CUDA  // without replicas on GPUs the job takes another course
  EXPECT_GT(times, 0);
#endif
}

// The job of a seed. Seeds have no random numbers in common.
Job job_of(uint64_t seed) { return draw(seed, Random(Random(seed).next())); }

// In this drawn job the head comes back and falls silent again before it has decided on a dead worker. When
// the verdict is due, the workers do not know yet that the head is silent.
TEST(HeadLoss, ASecondOneBeforeTheVerdictIsWaitedFor) { expect_right(job_of(202'003'793)); }

// In this drawn job of a build with CUDA a machine dies after its peers have reported another dead one, and
// before the head has decided about that.
TEST(HeadLoss, AWorkerThatDiesDuringAVerdictIsNotTakenForOneThatIsCutOff) {
  expect_right(job_of(701'014'853));
}

// In this drawn job of a build with CUDA a worker reports a peer that is cut off from all right after that.
// The head names the peer only when the lease that has just begun is over.
TEST(Loss, AVerdictThatTakesAWholeLeaseIsWaitedFor) { expect_right(job_of(940'024'098)); }

// Adds checkpoints, losses of workers that join (soon after their start, or when they train), and programs
// that fail.
Job with_more(Job job, Random random) {
  if (random.chance(0.3)) job.checkpoint_interval = 1 + static_cast<int>(random.below(6));
  for (size_t i = 0; i < job.joins.size() && !job.settings.count("copies"); ++i) {
    if (!random.chance(0.3)) continue;
    const Duration after = job.joins[i] + random.between(1us, random.chance(0.5) ? 12ms : 60ms);
    job.losses.push_back(
        {job.workers + static_cast<int>(i), after, static_cast<Loss::Kind>(random.below(4))});
  }
  for (Loss& loss : job.losses) {
    if (random.chance(0.2)) loss.kind = Loss::kFails;
  }
  return job;
}

// DSGD_SIMULATION_SEED=17 repeats one job; DSGD_SIMULATION_JOBS=1000 runs so many, from that seed or from 1.
TEST(Loss, OfAnyWorkersAtAnyMomentsLeavesTheOthersWithOneModel) {
  const uint64_t one = environment_number("DSGD_SIMULATION_SEED", 0), first = one ? one : 1;
  const uint64_t jobs =
      environment_number("DSGD_SIMULATION_JOBS", one ? 1 : 2000 / dsgd_test::one_of(10, 100));
  int copied = 0, joined = 0, saved = 0, heads = 0;
  for (uint64_t seed = first; seed < first + jobs; ++seed) {
    const Job job = with_more(job_of(seed), Random(Random(~seed).next()));
    const Count count = expect_right(job);
    heads += !job.head_losses.empty();
    copied += count.copied;
    joined += count.joined;
    saved += count.saved;
    if (HasFailure()) return;
  }
  std::cerr << "  jobs in which a worker has copied a step: " << copied << " of " << jobs
            << "; workers that joined: " << joined << "; jobs that left a checkpoint: " << saved
            << "; jobs in which the head was lost: " << heads << "\n";
  if (jobs >= 100) {
    EXPECT_GT(copied, 0);
    EXPECT_GT(joined, 0);
    EXPECT_GT(saved, 0);
  }
}

}  // namespace
}  // namespace dsgd::simulation::loss_test

#include "job.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include "core/session/session.h"
#include "programs.h"
#include "registered.h"
#include "tests/unit/begin.h"
#include "tests/unit/wait_for.h"
#include "transport/sim/world.h"

namespace dsgd::simulation {
namespace {

using namespace std::chrono_literals;
using transport::Death;
using transport::ProcessId;
using transport::SimOptions;
using transport::SimWorld;
using transport::Time;

std::string milliseconds(transport::Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) + "ms";
}

Config config_of(const JobSpec& spec, int worker) {
  Config config;
  config.allow("algorithm", "doubling");
  config.allow("algorithm", "tree");
  config.allow("strategy", "dealt");
  const std::vector<std::pair<std::string, std::string>> values = {
      {"head", "node0:7700"},
      {"job", "simulated"},
      {"token", "secret"},
      {"checksum", spec.one_host ? "always" : "auto"},
      {"num_workers", std::to_string(spec.shape.workers)},
      {"embed_head", spec.separate_head ? "never" : "auto"},
      {"lease", milliseconds(kLease)},
      {"step_timeout", milliseconds(kStepTimeout)},
      {"init_timeout", milliseconds(kInitTimeout)},
      {"bucket_size", spec.bucket_size},
      {"strategy", spec.strategy},
      {"copies", spec.copies},
      {"algorithm", spec.algorithm},
      {"reproducible", spec.reproducible ? "1" : "0"},
      {"gradient_norm", spec.gradient_norm ? "1" : "0"},
      {"loss_scale", spec.loss_scale ? "1024" : "off"},
      {"nonfinite", spec.nonfinite},
      {"wire", spec.wire},
      {"receive_memory", "1M"}};
  for (const auto& [key, value] : values) {
    Status status = config.set(key, value);
    if (!status.ok()) std::abort();
  }
  if (worker >= 0 && !config.set("rank", std::to_string(worker)).ok()) std::abort();
  if (worker >= 0 && !config.set("worker_id", std::string("w") + std::to_string(worker)).ok()) std::abort();
  return config;
}

// The calls of a user of the library in one worker process, with notes of their outcomes.
class Program {
 public:
  Program(SimWorld& world, ProcessId process, const JobSpec& spec, const Oracle& oracle, int worker,
          WorkerOutcome& outcome)
      : world_(world),
        process_(process),
        spec_(spec),
        shape_(spec.shape),
        oracle_(oracle),
        worker_(worker),
        outcome_(outcome) {}

  void run() {
    std::shared_ptr<Session> session;
    note("open", [&] {
      auto opened =
          Session::open(config_of(spec_, worker_), world_.environment(process_),
                        log_of(world_, "worker " + std::to_string(worker_)), registered_with_devices());
      if (opened.ok()) session = std::move(opened).value();
      return opened.status();
    });
    if (session) {
      train(*session);
      // Broken for good: a further call says so, too, and at once. (After a time-out the job may go on.)
      const Code code = outcome_.calls.back().status.code();
      if (code == Code::kWorkerLost || code == Code::kAborted) {
        note("after", [&] { return wait_for(*session, session->barrier(Session::Mode::kWait)); });
      }
      note("close", [&] { return session->close(1000ms); });
      session.reset();
    }
    outcome_.finished = true;
  }

 private:
  bool note(const std::string& name, const std::function<Status()>& call) {
    return note_call(world_, outcome_.calls, name, call);
  }

  bool train(Session& session) {
    if (!note("set up", [&] { return set_up(session); })) return false;
    if (!note("start", [&] { return session.start(); })) return false;
    compare("start", 0);
    for (int k = 0; k < shape_.steps; ++k) {
      if (spec_.changes && k > 0 &&
          !note("strategy " + std::to_string(k), [&] { return change(session, k); }))
        return false;
      if (refuses_nonfinite() && k % 3 == 1) {
        if (!note("non-finite step " + std::to_string(k), [&] { return nonfinite_step(session, k); }))
          return false;
        compare("non-finite step " + std::to_string(k), k);
      }
      const bool stepped = note("step " + std::to_string(k), [&] { return step(session, k); });
      compare("step " + std::to_string(k), stepped ? k + 1 : k);  // a step is whole or has changed nothing
      compare_gradients(k);
      if (!stepped) {
        if (outcome_.calls.back().status.code() == Code::kTimeout)
          note(kAfterAFailedStep, [&] { return step(session, k); });
        return false;
      }
      if (k % 2 == 0 && !(collectives(session, k) && objects(session, k))) return false;
    }
    return note("barrier", [&] { return wait_for(session, session.barrier(Session::Mode::kWait)); });
  }

  Status set_up(Session& session) {
    Status status = session.set_optimizer("sgd", "lr=0.5 momentum=" + std::to_string(shape_.momentum));
    std::vector<Parameter*> parameters;
    for (size_t t = 0; t < shape_.tensors.size() && status.ok(); ++t) {
      const int64_t count = static_cast<int64_t>(shape_.tensors[t]);
      auto parameter =
          session.add_parameter(std::string("p") + std::to_string(t), DType::kFloat32, {&count, 1}, true);
      status = parameter.status();
      if (parameter.ok()) parameters.push_back(parameter.value());
    }
    parameters_ = parameters;
    tensors_.resize(static_cast<size_t>(shape_.replicas));
    for (size_t r = 0; r < tensors_.size() && status.ok(); ++r) {
      const std::string device = spec_.device(worker_, static_cast<int>(r));
      auto replica = session.add_replica(device);
      status = replica.status();
      if (status.ok()) replicas_.push_back(replica.value());
      for (size_t t = 0; t < parameters.size() && status.ok(); ++t) {
        Tensor& tensor = tensors_[r].emplace_back();
        const size_t count = shape_.tensors[t], nbytes = count * sizeof(float);
        if (device == "cpu") {
          tensor.own.resize(2 * count);
          tensor.value = {tensor.own.data(), count};
          tensor.gradient = {tensor.own.data() + count, count};
          status = session.bind(replica.value(), parameters[t], tensor.value.data(), nbytes,
                                tensor.gradient.data(), nbytes, nullptr);
        } else {  // the fake GPU's memory can be read and written here, too
          auto memory = session.alloc(replica.value(), parameters[t]);
          status = memory.status();
          if (!status.ok()) break;
          tensor.memory = memory.value();
          tensor.value = {static_cast<float*>(tensor.memory->value), count};
          tensor.gradient = {static_cast<float*>(tensor.memory->gradient), count};
        }
        for (size_t i = 0; i < count; ++i) tensor.value[i] = initial_value(shape_, worker_, t, i);
      }
    }
    return status;
  }

  Status change(Session& session, int k) {
    static const char* const kStrategies[] = {"simple", "ps", "allreduce", "dealt"};
    return session.set_strategy(kStrategies[(shape_.seed + static_cast<uint64_t>(k)) % 4], "");
  }

  // ---- gradients that are not finite

  bool refuses_nonfinite() const { return spec_.nonfinite == "fail" || spec_.nonfinite == "skip"; }
  // Makes one element NaN or infinite, in one replica of a worker with a weight: the first that `where`
  // accepts. Returns that worker, or -1 if there is no such element.
  int make_nonfinite(int k, const std::function<bool(float element)>& where) {
    const int n = shape_.workers;
    int worker = static_cast<int>((shape_.seed + static_cast<uint64_t>(k)) % static_cast<uint64_t>(n));
    for (int tries = 0; tries < n && weight(shape_, k, worker) == 0; ++tries) worker = (worker + 1) % n;
    const int replica = k % shape_.replicas;
    for (size_t t = 0; t < shape_.tensors.size(); ++t) {
      for (size_t i = 0; i < shape_.tensors[t]; ++i) {
        if (!where(gradient(shape_, k, worker, replica, t, i))) continue;
        if (worker_ == worker) {
          tensors_[static_cast<size_t>(replica)][t].gradient[i] =
              i % 2 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
        }
        return worker;
      }
    }
    return -1;
  }

  Status nonfinite_step(Session& session, int k) {
    fill_gradients(session, k);
    const int worker = make_nonfinite(k, [](float) { return true; });
    if (worker < 0) return {};  // the model has no element
    StepResult result;
    Status status =
        k % 2 ? overlapped_step(session, k, &result) : session.step(weight(shape_, k, worker_), &result);
    if (spec_.nonfinite == "fail") {
      if (status.ok() || (status.code() == Code::kNonFinite && status.rank() != worker))
        wrong("end of non-finite step", k);
      return status.code() == Code::kNonFinite ? Status() : status;
    }
    if (status.ok() && (!result.skipped || result.applied || result.nonfinite_rank != worker))
      wrong("result of non-finite step", k);
    return status;
  }

  void fill_gradients(Session& session, int k) {
    const float factor = static_cast<float>(session.loss_scale());
    for (size_t r = 0; r < tensors_.size(); ++r) {
      for (size_t t = 0; t < tensors_[r].size(); ++t) {
        const std::span<float> tensor = tensors_[r][t].gradient;
        for (size_t i = 0; i < tensor.size(); ++i)
          tensor[i] = factor * gradient(shape_, k, worker_, static_cast<int>(r), t, i);
      }
    }
    factor_ = factor;
  }

  Status step(Session& session, int k) {
    fill_gradients(session, k);
    // With nonfinite=zero the element counts as zero, so one whose value is zero changes no result.
    const int nonfinite_rank =
        spec_.nonfinite == "zero" ? make_nonfinite(k, [](float element) { return element == 0; }) : -1;
    StepResult result;
    Status status =
        k % 2 ? overlapped_step(session, k, &result) : session.step(weight(shape_, k, worker_), &result);
    if (status.ok()) {
      double total = 0;
      for (int w = 0; w < shape_.workers; ++w) total += weight(shape_, k, w);
      if (!result.applied || result.weight != total || result.size != shape_.workers ||
          result.nonfinite_rank != nonfinite_rank)
        wrong("result of step", k);
    }
    return status;
  }

  // Gradients are marked one by one, the last ones first, and one of them not at all.
  Status overlapped_step(Session& session, int k, StepResult* result) {
    auto begun = session.step_begin(weight(shape_, k, worker_));
    if (!begun.ok()) return begun.status();
    for (size_t r = 0; r < replicas_.size(); ++r) {
      for (size_t t = parameters_.size(); t-- > 1;) {
        Status status = session.gradient_ready(replicas_[r], parameters_[t], nullptr);
        // The step may have failed by now, and says so itself.
        if (!status.ok() && status.code() != Code::kState) return status;
      }
    }
    (void)session.step_flush();  // of the parameter that was not marked; if it fails, so has the step
    Status status = session.wait(*begun.value(), -1ms);
    *result = begun.value()->step_result();
    return status;
  }

  // Sums, copies and concatenations of numbers that tell who sent them.
  bool collectives(Session& session, int k) {
    const int n = shape_.workers;
    const size_t count = 1 + shape_.seed % 700;
    std::vector<int32_t> sum(count);
    for (size_t i = 0; i < count; ++i) sum[i] = worker_ * 1000 + static_cast<int32_t>(i) + k;
    const bool summed = note("all-reduce", [&] {
      return wait_for(
          session, begin(session.allreduce(sum.data(), sum.data(), count * 4, DType::kInt32, Reduction::kSum),
                         Session::Mode::kQueue));
    });
    if (!summed) return false;
    for (size_t i = 0; i < count; ++i) {
      if (sum[i] != 1000 * (n * (n - 1) / 2) + n * (static_cast<int32_t>(i) + k))
        return wrong("all-reduce", k), true;
    }
    const int32_t root = k % n;
    std::vector<uint8_t> blob(count, static_cast<uint8_t>(worker_ + 1));
    const bool given = note("broadcast", [&] {
      return wait_for(
          session, begin(session.broadcast(blob.data(), count, DType::kUint8, root), Session::Mode::kWait));
    });
    if (!given) return false;
    if (blob != std::vector<uint8_t>(count, static_cast<uint8_t>(root + 1))) wrong("broadcast", k);
    std::vector<size_t> counts;
    std::vector<int64_t> want;
    for (int w = 0; w < n; ++w) {
      counts.push_back(static_cast<size_t>(w * 3));
      want.insert(want.end(), counts.back(), w);
    }
    std::vector<int64_t> mine(counts[static_cast<size_t>(worker_)], worker_), all(want.size(), -1);
    const bool gathered = note("all-gather", [&] {
      return wait_for(session, begin(session.allgather(mine.data(), mine.size() * 8, all.data(),
                                                       all.size() * 8, counts.data(), DType::kInt64),
                                     Session::Mode::kQueue));
    });
    if (!gathered) return false;
    if (all != want) wrong("all-gather", k);
    std::vector<int64_t> parts(want.size()), part(counts[static_cast<size_t>(worker_)]), sums(part.size());
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<int64_t>(i) * (worker_ + 1);
    size_t begin = 0;
    for (int w = 0; w < worker_; ++w) begin += counts[static_cast<size_t>(w)];
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<int64_t>(begin + i) * (n * (n + 1) / 2);
    const bool scattered = note("reduce-scatter", [&] {
      return wait_for(session, dsgd::begin(session.reduce_scatter(parts.data(), parts.size() * 8, part.data(),
                                                                  part.size() * 8, counts.data(),
                                                                  DType::kInt64, Reduction::kSum),
                                           Session::Mode::kWait));
    });
    if (scattered && part != sums) wrong("reduce-scatter", k);
    return scattered;
  }

  // One worker puts an object, and all get it.
  bool objects(Session& session, int k) {
    const std::string name = "o" + std::to_string(k);
    const std::vector<uint8_t> bytes(1 + shape_.seed * 977 % 600'000, static_cast<uint8_t>(k + 1));
    if (worker_ == (k + 1) % shape_.workers && !note("put", [&] {
          return wait_for(session,
                          session.object_put(name, bytes, Object::kNoType, {}, Session::Mode::kWait));
        }))
      return false;
    return note("get", [&] {
      const auto got = session.object_get(name, Session::Mode::kWait);
      const Status status = wait_for(session, got);
      if (status.ok() && got.value()->object()->bytes != bytes) wrong("object", k);
      return status;
    });
  }

  void compare(const std::string& when, int steps) {
    const auto& want = oracle_.values(steps);
    for (const auto& replica : tensors_) {
      size_t k = 0;
      for (const auto& [value, gradient, own, memory] : replica) {
        const std::span<const float> tensor = value;
        if (!tensor.empty() &&
            std::memcmp(tensor.data(), want.data() + k, tensor.size() * sizeof(float)) != 0) {
          outcome_.wrong.push_back("values after " + when);
          return;
        }
        k += tensor.size();
      }
    }
  }
  // The host's gradients are only read.
  void compare_gradients(int k) {
    for (size_t r = 0; r < tensors_.size(); ++r) {
      for (size_t t = 0; t < tensors_[r].size(); ++t) {
        const std::span<const float> tensor = tensors_[r][t].gradient;
        for (size_t i = 0; i < tensor.size(); ++i) {
          if (spec_.nonfinite == "zero" && !std::isfinite(tensor[i])) continue;
          if (tensor[i] != factor_ * gradient(shape_, k, worker_, static_cast<int>(r), t, i))
            return wrong("gradients after step", k);
        }
      }
    }
  }
  void wrong(const std::string& what, int k) { outcome_.wrong.push_back(what + " " + std::to_string(k)); }

  SimWorld& world_;
  const ProcessId process_;
  const JobSpec& spec_;
  const Shape& shape_;
  const Oracle& oracle_;
  const int worker_;
  WorkerOutcome& outcome_;
  struct Tensor {
    std::span<float> value, gradient;
    std::vector<float> own;
    std::shared_ptr<TensorMemory> memory;
  };
  std::vector<std::vector<Tensor>> tensors_;  // by replica
  std::vector<Parameter*> parameters_;
  std::vector<Replica*> replicas_;
  float factor_ = 1;  // of the last step's gradients
};

void inject(SimWorld& world, const JobSpec& spec, const std::vector<ProcessId>& processes) {
  const ProcessId victim = processes[static_cast<size_t>(spec.victim)];
  const ProcessId other = processes[static_cast<size_t>(spec.other)];
  auto later = [&world](transport::Duration after, std::function<void()> action) {
    world.at(world.now() + after, std::move(action));
  };
  switch (spec.fault) {
    case Fault::kNone:
    case Fault::kSlow:
      break;
    case Fault::kKill:
      world.kill(victim, Death::kReset);
      break;
    case Fault::kMachineDies:
      world.kill(victim, Death::kSilent);
      break;
    case Fault::kIsolate:
      world.isolate(victim);
      break;
    case Fault::kBreak:
      world.break_connections(victim, other);
      break;
    case Fault::kFlip:
      world.flip_bit(victim, other);
      break;
    case Fault::kLongBlock:
      world.block(victim, other);
      break;
    case Fault::kShortBlock:
      world.block(victim, other);
      later(kLease / 3, [&world, victim, other] { world.unblock(victim, other); });
      break;
    case Fault::kShortPause:
    case Fault::kLongPause:
      world.pause(victim);
      later(spec.fault == Fault::kShortPause ? kLease / 3 : kLongPause,
            [&world, victim] { world.resume(victim); });
      break;
  }
}

}  // namespace

JobOutcome run_job(const JobSpec& spec) {
  const int workers = spec.shape.workers;
  const Oracle oracle(spec.shape);
  JobOutcome outcome;
  outcome.workers.resize(static_cast<size_t>(workers));
  SimOptions options;
  if (spec.fault == Fault::kSlow) options.delay = {20us, 500us, 0.05, 30ms};
  SimWorld world(spec.shape.seed, options);

  std::vector<ProcessId> processes;
  std::vector<std::unique_ptr<Program>> programs;
  bool stop_head = false;
  for (int w = 0; w < workers; ++w) {
    const bool first = spec.one_host || (w == 0 && !spec.separate_head);
    processes.push_back(world.start_process(first ? "node0" : "node" + std::to_string(w + 1)));
    programs.push_back(std::make_unique<Program>(world, processes.back(), spec, oracle, w,
                                                 outcome.workers[static_cast<size_t>(w)]));
    world.start_program(processes.back(), [program = programs.back().get()] { program->run(); });
  }
  if (spec.separate_head) {
    processes.push_back(world.start_process("node0"));
    world.start_program(processes.back(), [&world, &spec, &stop_head, process = processes.back()] {
      run_head(world, world.environment(process), config_of(spec, -1), stop_head);
    });
  }
  if (spec.fault != Fault::kNone && spec.fault != Fault::kSlow) {
    world.at(world.now() + spec.fault_after, [&] {
      if (outcome.ended != Time{}) return;  // the job was over before
      outcome.fault_at = world.now();
      inject(world, spec, processes);
    });
  }
  auto survivors_done = [&] {
    for (int w = 0; w < workers; ++w) {
      if (world.alive(processes[static_cast<size_t>(w)]) && !outcome.workers[static_cast<size_t>(w)].finished)
        return false;
    }
    return true;
  };
  world.run_until(survivors_done, world.now() + 60s);
  outcome.ended = world.now();
  outcome.trace_hash = world.trace_hash();

  // The end of the test, not of the job: everything that still stands is wound up. What it says now does not
  // count.
  const auto judged = outcome.workers;
  stop_head = true;
  end_all(world, processes, spec.describe());
  outcome.workers = judged;
  return outcome;
}

}  // namespace dsgd::simulation

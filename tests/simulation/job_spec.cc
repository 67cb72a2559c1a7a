#include "job_spec.h"

#include <sstream>

#include "transport/sim/random.h"

namespace dsgd::simulation {

using namespace std::chrono_literals;
using transport::Duration;
using transport::Random;

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "none";
    case Fault::kSlow:
      return "slow";
    case Fault::kShortPause:
      return "short pause";
    case Fault::kShortBlock:
      return "short block";
    case Fault::kKill:
      return "kill";
    case Fault::kMachineDies:
      return "machine dies";
    case Fault::kLongPause:
      return "long pause";
    case Fault::kLongBlock:
      return "long block";
    case Fault::kIsolate:
      return "isolate";
    case Fault::kBreak:
      return "break";
    case Fault::kFlip:
      return "flip";
  }
  return "?";
}

bool harmless(Fault fault) { return fault <= Fault::kShortBlock; }

JobSpec JobSpec::draw(uint64_t seed) {
  Random random(seed * 0x2545f4914f6cdd1du + 11);
  JobSpec spec;
  Shape& shape = spec.shape;
  shape.seed = seed;
  shape.workers = 2 + static_cast<int>(random.below(4));
  shape.replicas = 1 + static_cast<int>(random.below(2));
  const size_t tensors = 1 + random.below(4);
  for (size_t t = 0; t < tensors; ++t) {
    shape.tensors.push_back(random.chance(0.1) ? 0 : 1 + random.below(random.chance(0.2) ? 6000 : 300));
  }
  shape.steps = 1 + static_cast<int>(random.below(6));
  shape.momentum = random.chance(0.5) ? 0.5 : 0;
  spec.separate_head = random.chance(0.4);
  static const char* const kStrategies[] = {"simple", "ps", "allreduce", "dealt"};
  spec.strategy = kStrategies[random.below(4)];
  static const char* const kAlgorithms[] = {"auto", "direct", "halving_doubling", "ring", "doubling", "tree"};
  spec.algorithm = kAlgorithms[random.below(std::size(kAlgorithms))];
  spec.bucket_size = random.chance(0.5) ? "4K" : "4M";
  spec.reproducible = random.chance(0.3);
  spec.one_host = random.chance(0.2);
  spec.gradient_norm = random.chance(0.2);
  spec.loss_scale = random.chance(0.2);
#ifdef DSGD_TEST_CUDA
  spec.gpus = random.chance(0.5);
#endif
  spec.changes = random.chance(0.3);
  spec.fault = static_cast<Fault>(random.below(11));
  // Most often while the job is at work, which takes some tens of virtual milliseconds; now and then after
  // it.
  spec.fault_after = random.between(0us, random.chance(0.4) ? 3ms : 12ms);
  const auto processes = static_cast<uint64_t>(spec.processes());
  spec.victim = static_cast<int>(random.below(processes));
  spec.other =
      static_cast<int>((static_cast<uint64_t>(spec.victim) + 1 + random.below(processes - 1)) % processes);
  static const char* const kNonFinite[] = {"off", "fail", "skip", "zero"};
  spec.nonfinite = kNonFinite[random.below(4)];
  // Sums of the oracle's small integers are exact in halves.
  if (!spec.reproducible && random.chance(0.4)) {
    spec.wire = spec.loss_scale && random.chance(0.5) ? "fp16" : "bf16";
    if (spec.algorithm != "direct") spec.algorithm = "auto";
  }
  if (random.chance(0.5)) spec.copies = "2";
  return spec;
}

std::string JobSpec::device(int worker, int replica) const {
  static const char* const kDevices[] = {"cpu", "cuda:0", "cuda:0", "cuda:1"};
  return gpus ? kDevices[Random(shape.seed * 64 + static_cast<uint64_t>(worker * 8 + replica)).below(4)]
              : "cpu";
}

std::string JobSpec::describe() const {
  std::ostringstream out;
  out << "seed " << shape.seed << ": " << shape.workers << " workers x " << shape.replicas << ", " << strategy
      << "/" << algorithm << (reproducible ? ", reproducible" : "") << (gradient_norm ? ", norm" : "")
      << (loss_scale ? ", loss scale" : "") << ", nonfinite " << nonfinite << ", wire " << wire << ", copies "
      << copies << (changes ? ", changes" : "") << ", buckets " << bucket_size << ", " << shape.steps
      << " steps, tensors";
  for (size_t n : shape.tensors) out << " " << n;
  for (int w = 0; w < shape.workers && gpus; ++w) {
    out << (w == 0 ? ", on " : "; ");
    for (int r = 0; r < shape.replicas; ++r) out << (r ? "," : "") << device(w, r);
  }
  out << (separate_head ? ", separate head" : ", head in worker 0") << (one_host ? ", one host" : "")
      << "; fault: " << fault_name(fault) << " of " << victim;
  if (fault == Fault::kBreak || fault == Fault::kFlip || fault == Fault::kShortBlock ||
      fault == Fault::kLongBlock)
    out << " and " << other;
  out << " after " << std::chrono::duration_cast<std::chrono::microseconds>(fault_after).count() << " us";
  return out.str();
}

}  // namespace dsgd::simulation

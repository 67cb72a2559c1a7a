// What a device does with a step's buckets, against its own copy bandwidth: update, fuse, unfuse, local reduce, staging, and what a
// step costs the host. Writes one CSV line per measurement and round: name,seconds,bytes,limit (the measurement that it is
// compared with, from the same round). Results are checked first, outside of what is timed.
//
//   bench [--rounds N] [--scale PART] [--device cuda:0]      scale 1: 100 million parameters
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/optimizer/optimizer.h"
#include "core/session/session.h"
#include "tests/unit/device/gpu.h"
#include "transport/uv/environment.h"

namespace dsgd {
namespace {

using device::Action;
using device::SumPiece;
using device::Term;
using device::UpdatePiece;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "bench: %s\n", what.c_str());
  std::exit(1);
}
void must(const Status& status) {
  if (!status.ok()) fail(status.message());
}
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// ResNet-50's parameters, in the order of the layers: 161 tensors, 25.6 million elements.
std::vector<size_t> resnet50() {
  std::vector<size_t> tensors = {64 * 3 * 7 * 7, 64, 64};
  size_t in = 64;
  const size_t blocks[] = {3, 4, 6, 3};
  for (size_t stage = 0; stage < 4; ++stage) {
    const size_t planes = size_t{64} << stage, out = 4 * planes;
    for (size_t block = 0; block < blocks[stage]; ++block) {
      for (size_t n : {in * planes, planes, planes, planes * planes * 9, planes, planes, planes * out, out, out}) tensors.push_back(n);
      if (block == 0) {
        for (size_t n : {in * out, out, out}) tensors.push_back(n);
      }
      in = out;
    }
  }
  tensors.push_back(2048 * 1000);
  tensors.push_back(1000);
  return tensors;
}

struct Options {
  int rounds = 5;
  double scale = 1;
  std::string device = "cuda:0";
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), device_(must(device::Device::open(device::cuda_backend(), std::atoi(options.device.c_str() + 5)))),
        queue_(must(device_->new_queue())), other_(must(device_->new_queue())) {
    std::printf("# %s\nname,seconds,bytes,limit\n", device_->describe().c_str());
  }

  void run() {
    for (int round = 0; round < options_.rounds; ++round) {
      copies();
      updates("sgd", "lr=1e-3 momentum=0.9", 20);
      updates("adamw", "lr=1e-3", 28);
      fusion();
      local_reduce(2);
      local_reduce(4);
      staging();
      step();
    }
  }

 private:
  static constexpr int kRepeats = 20;

  using Memory = std::shared_ptr<void>;
  Memory floats(size_t count) { return must(device_->allocate(count * sizeof(float))); }
  static float* at(const Memory& memory, size_t position = 0) { return static_cast<float*>(memory.get()) + position; }
  size_t scaled(size_t count) const { return std::max<size_t>(1024, static_cast<size_t>(static_cast<double>(count) * options_.scale)); }

  // Seconds of one of many that are entered one after the other.
  double time(const std::function<void()>& enter) {
    enter();
    device::finish(*device_, *queue_);
    const double begin = now();
    for (int i = 0; i < kRepeats; ++i) enter();
    device::finish(*device_, *queue_);
    return (now() - begin) / kRepeats;
  }
  void row(const std::string& name, double seconds, double bytes, const std::string& limit = "device copy") {
    std::printf("%s,%.9f,%.0f,%s\n", name.c_str(), seconds, bytes, limit.c_str());
    std::fflush(stdout);
  }

  void copies() {
    const size_t count = scaled(100'000'000);
    const Memory a = floats(count), b = floats(count);
    row("device copy", time([&] { must(queue_->copy(b.get(), a.get(), count * 4)); }), 8.0 * static_cast<double>(count), "");
  }

  void updates(const char* name, const char* optimizer_options, double bytes) {
    const size_t count = scaled(100'000'000);
    const Memory sums = floats(count), value = floats(count), first = floats(count), second = floats(count);
    const auto optimizer = must(Optimizer::make(name, optimizer_options));
    UpdatePiece piece{0, count, 4, 0, 1, Action::kUpdate, optimizer->rule(10, {}), {first.get(), second.get(), nullptr}};
    void* target = value.get();
    row(std::string("update ") + name, time([&] { must(queue_->update(DType::kFloat32, {&piece, 1}, {&target, 1}, sums.get())); }),
        bytes * static_cast<double>(count));
  }

  void fusion() {
    std::vector<size_t> tensors = resnet50();
    for (size_t& n : tensors) n = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(n) * std::min(1.0, options_.scale)));
    std::vector<Memory> gradients;
    std::vector<SumPiece> pieces;
    std::vector<Term> terms;
    std::vector<UpdatePiece> copies;
    std::vector<void*> targets;
    size_t total = 0, used = 0;
    for (size_t n : tensors) {
      gradients.push_back(floats(n));
      pieces.push_back({total, n, static_cast<uint32_t>(terms.size()), 1});
      terms.push_back({gradients.back().get(), 1});
      copies.push_back({total, n, 1, static_cast<uint32_t>(targets.size()), 1, Action::kCopy, {}, {}});
      targets.push_back(gradients.back().get());
      used += n;
      total += (n + 15) / 16 * 16;
    }
    const Memory bucket = floats(total);
    const double bytes = 8.0 * static_cast<double>(used);
    row("fuse 161 tensors", time([&] { must(queue_->sum(DType::kFloat32, pieces, terms, bucket.get())); }), bytes);
    row("unfuse 161 tensors", time([&] { must(queue_->update(DType::kFloat32, copies, targets, bucket.get())); }), bytes);
  }

  void local_reduce(uint32_t replicas) {
    const size_t count = scaled(50'000'000);
    std::vector<Memory> gradients;
    std::vector<Term> terms;
    for (uint32_t r = 0; r < replicas; ++r) {
      gradients.push_back(floats(count));
      terms.push_back({gradients.back().get(), 1.0 + r});
    }
    const Memory bucket = floats(count);
    const SumPiece piece{0, count, 0, replicas};
    row("reduce of " + std::to_string(replicas) + " replicas", time([&] { must(queue_->sum(DType::kFloat32, {&piece, 1}, terms, bucket.get())); }),
        4.0 * static_cast<double>(count) * (replicas + 1));
  }

  void staging() {
    const size_t nbytes = scaled(16 << 20) * 4;
    const Memory there = must(device_->allocate(nbytes)), back = must(device_->allocate(nbytes));
    const Memory up = must(device_->allocate_staging(nbytes)), down = must(device_->allocate_staging(nbytes));
    const double bytes = static_cast<double>(nbytes);
    row("to the device", time([&] { must(queue_->copy(there.get(), up.get(), nbytes)); }), bytes, "");
    row("to the host", time([&] { must(queue_->copy(down.get(), back.get(), nbytes)); }), bytes, "");
    device::finish(*device_, *other_);
    const double begin = now();
    for (int i = 0; i < kRepeats; ++i) {
      must(queue_->copy(there.get(), up.get(), nbytes));
      must(other_->copy(down.get(), back.get(), nbytes));
    }
    device::finish(*device_, *queue_);
    device::finish(*device_, *other_);
    row("both ways at once", (now() - begin) / kRepeats, 2 * bytes, "to the device");
  }

  // One worker, one GPU, ResNet-50's tensors: what the host's CPUs do per step, and how long it takes.
  void step() {
    Registered registered;
    registered.backends["cuda"] = []() -> Result<const device::Backend*> { return &device::cuda_backend(); };
    auto session = must(Session::open(Config(), transport::make_uv_environment(), std::make_shared<Log>(), registered));
    must(session->set_optimizer("sgd", "lr=1e-3 momentum=0.9"));
    Replica* replica = must(session->add_replica(options_.device));
    std::vector<Parameter*> parameters;
    for (size_t n : resnet50()) {
      const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(n) * std::min(1.0, options_.scale)));
      parameters.push_back(must(session->add_parameter(std::string("p") + std::to_string(parameters.size()), DType::kFloat32, {&count, 1}, true)));
      must(session->alloc(replica, parameters.back()).status());
    }
    must(session->start());
    const auto cpu = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
      return seconds(usage.ru_utime) + seconds(usage.ru_stime);
    };
    const auto one = [&] {
      auto operation = must(session->step_begin(1));
      for (Parameter* parameter : parameters) must(session->gradient_ready(replica, parameter, nullptr));
      must(session->wait(*operation, std::chrono::milliseconds(-1)));
    };
    const int steps = options_.scale < 1 ? 5 : 200;
    one();
    const double cpu_before = cpu(), begin = now();
    for (int i = 0; i < steps; ++i) one();
    row("host CPU time of a step", (cpu() - cpu_before) / steps, 0, "");
    row("host time of a step", (now() - begin) / steps, 0, "");
    must(session->close(std::chrono::seconds(10)));
  }

  const Options options_;
  const std::shared_ptr<device::Device> device_;
  const std::unique_ptr<device::WorkQueue> queue_, other_;
};

int main_(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (option == "--rounds" && value) {
      options.rounds = std::atoi(argv[++i]);
    } else if (option == "--scale" && value) {
      options.scale = std::atof(argv[++i]);
    } else if (option == "--device" && value && std::strncmp(value, "cuda:", 5) == 0) {
      options.device = argv[++i];
    } else {
      std::fprintf(option == "--help" ? stdout : stderr, "usage: bench [--rounds N] [--scale PART] [--device cuda:0]\n");
      return option == "--help" ? 0 : 2;
    }
  }
  if (options.rounds < 1 || !(options.scale > 0)) fail("--rounds is at least 1, --scale more than 0");
  Bench(options).run();
  return 0;
}

}  // namespace
}  // namespace dsgd

int main(int argc, char** argv) { return dsgd::main_(argc, argv); }

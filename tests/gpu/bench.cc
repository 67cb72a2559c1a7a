// What a device does with a step's buckets, against its own copy bandwidth: update, fuse, unfuse, local reduce; staging, against
// plain copies; what a step costs the host; a step with a worker on the CPU, against what carries it. Writes one CSV line per
// measurement and round: name,seconds,bytes,limit (the measurement that it is compared with, from the same round).
//
//   bench [--rounds N] [--scale PART] [--device cuda:0]      scale 1: 100 million parameters
//   bench --gpus                                             how many there are
#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/device/device.h"
#include "core/optimizer/optimizer.h"
#include "core/session/session.h"
#include "tests/gpu/wire.h"
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

void must(cudaError_t error) {
  if (error != cudaSuccess) fail(std::string("CUDA: ") + cudaGetErrorName(error));
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
      step_beside_the_cpu();
    }
  }

 private:
  static constexpr int kRepeats = 20;

  using Memory = std::shared_ptr<void>;
  Memory floats(size_t count) { return must(device_->allocate(count * sizeof(float))); }
  static float* at(const Memory& memory, size_t position = 0) { return static_cast<float*>(memory.get()) + position; }
  size_t scaled(size_t count) const { return std::max<size_t>(1024, static_cast<size_t>(static_cast<double>(count) * options_.scale)); }

  size_t staged_bytes() const { return scaled(16 << 20) * sizeof(float); }  // 64 MiB

  // Seconds of one of many that are entered one after the other.
  static double time_with(const std::function<void()>& enter, const std::function<void()>& finish) {
    enter();
    finish();
    const double begin = now();
    for (int i = 0; i < kRepeats; ++i) enter();
    finish();
    return (now() - begin) / kRepeats;
  }
  double time(const std::function<void()>& enter) {
    return time_with(enter, [this] { device::finish(*device_, *queue_); });
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

  // Pinned memory as a step uses it, through queues; and as a program that knows nothing of dsgd would.
  void staging() {
    const size_t nbytes = staged_bytes();
    const double bytes = static_cast<double>(nbytes);
    double both_plainly = 0;
    {
      must(cudaSetDevice(device_->index()));
      cudaStream_t up, down;
      must(cudaStreamCreateWithFlags(&up, cudaStreamNonBlocking));
      must(cudaStreamCreateWithFlags(&down, cudaStreamNonBlocking));
      void *there, *back, *from, *to;
      for (void** memory : {&there, &back}) must(cudaMalloc(memory, nbytes));
      for (void** memory : {&from, &to}) {
        must(cudaHostAlloc(memory, nbytes, cudaHostAllocPortable));
        std::memset(*memory, 0, nbytes);
      }
      const auto plain = [&](bool goes_up, bool comes_down) {
        return time_with(
            [&] {
              if (goes_up) must(cudaMemcpyAsync(there, from, nbytes, cudaMemcpyHostToDevice, up));
              if (comes_down) must(cudaMemcpyAsync(to, back, nbytes, cudaMemcpyDeviceToHost, down));
            },
            [&] {
              must(cudaStreamSynchronize(up));
              must(cudaStreamSynchronize(down));
            });
      };
      row("plain copy to the device", plain(true, false), bytes, "");
      row("plain copy to the host", plain(false, true), bytes, "");
      both_plainly = plain(true, true);
      row("plain copies both ways at once", both_plainly, 2 * bytes, "");
      for (void* memory : {there, back}) must(cudaFree(memory));
      for (void* memory : {from, to}) must(cudaFreeHost(memory));
      must(cudaStreamDestroy(up));
      must(cudaStreamDestroy(down));
    }
    const Memory there = must(device_->allocate(nbytes)), back = must(device_->allocate(nbytes));
    const Memory up = must(device_->allocate_staging(nbytes)), down = must(device_->allocate_staging(nbytes));
    const auto staged = [&](bool goes_up, bool comes_down) {
      return time_with(
          [&] {
            if (goes_up) must(queue_->copy(there.get(), up.get(), nbytes));
            if (comes_down) must(other_->copy(down.get(), back.get(), nbytes));
          },
          [&] {
            device::finish(*device_, *queue_);
            device::finish(*device_, *other_);
          });
    };
    row("to the device", staged(true, false), bytes, "plain copy to the device");
    row("to the host", staged(false, true), bytes, "plain copy to the host");
    row("both ways at once", staged(true, true), 2 * bytes, "plain copies both ways at once");
    staging_ = both_plainly;
  }

  using Settings = std::vector<std::pair<std::string, std::string>>;
  std::shared_ptr<Session> open(const Settings& settings) {
    Registered registered;
    registered.backends["cuda"] = []() -> Result<const device::Backend*> { return &device::cuda_backend(); };
    return must(Session::open(config(settings), transport::make_uv_environment(), std::make_shared<Log>(), registered));
  }
  static Config config(const Settings& settings) {
    Config config;
    for (const auto& [key, value] : settings) must(config.set(key, value));
    return config;
  }

  // One worker, one GPU, ResNet-50's tensors: what the host's CPUs do per step, and how long it takes.
  void step() {
    auto session = open({});
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
    // New values come before what the default stream does next.
    const auto rest = [] { must(cudaStreamSynchronize(nullptr)); };
    const int steps = options_.scale < 1 ? 5 : 200;
    must(cudaSetDevice(device_->index()));
    one();
    rest();
    double of_host = 0;
    for (int i = 0; i < steps; ++i) {  // each on a device at rest: where the queue is full, the driver waits
      const double before = cpu();
      one();
      of_host += cpu() - before;
      rest();
    }
    row("host CPU time of a step with 161 tensors", of_host / steps, 0, "");
    const double begin = now();
    for (int i = 0; i < steps; ++i) one();
    rest();
    row("time of a step with 161 tensors", (now() - begin) / steps, 0, "");
    must(session->close(std::chrono::seconds(10)));
  }

  // Two workers, of which one has the GPU, average gradients by RPC over TCP on loopback. The slower of two ways is the limit: the
  // wire with as many bytes both ways at once, and copies of as many bytes to the host and to the device at once.
  void step_beside_the_cpu() {
    constexpr int64_t kParameters = 16;
    const int64_t count = static_cast<int64_t>(staged_bytes() / sizeof(float)) / kParameters;
    const double bytes = static_cast<double>(kParameters * count) * sizeof(float);
    Wire wire(static_cast<size_t>(bytes));
    const int repeats = options_.scale < 1 ? 3 : 10;
    wire.exchange();
    double by_wire = 0;
    for (int i = 0; i < repeats; ++i) by_wire += wire.exchange() / repeats;
    row("wire both ways at once", by_wire, bytes, "");
    row("the slower of wire and staging", std::max(by_wire, staging_), bytes, "");

    auto head = must(HeadProcess::start(config({{"head", "127.0.0.1:0"}, {"num_workers", "2"}}), transport::make_uv_environment(),
                                        std::make_shared<Log>()));
    double seconds = 0;
    const auto worker = [&](int rank) {
      auto session = open({{"head", head->address()}, {"num_workers", "2"}, {"rank", std::to_string(rank)}, {"embed_head", "never"}});
      must(session->set_optimizer("none", ""));  // gradients become their mean
      Replica* replica = must(session->add_replica(rank == 0 ? options_.device : "cpu"));
      device::Access access(replica->device);
      std::vector<std::shared_ptr<TensorMemory>> tensors;
      for (int64_t p = 0; p < kParameters; ++p) {
        Parameter* parameter = must(session->add_parameter(std::string("p") + std::to_string(p), DType::kFloat32, {&count, 1}, true));
        tensors.push_back(must(session->alloc(replica, parameter)));
      }
      const auto set = [&](float value) {
        for (const auto& tensor : tensors) access.write(tensor->gradient, std::vector<float>(static_cast<size_t>(count), value));
      };
      const auto is = [&](float value) {
        for (const auto& tensor : tensors) {
          if (access.read<float>(tensor->gradient, static_cast<size_t>(count)) != std::vector<float>(static_cast<size_t>(count), value)) {
            fail("rank " + std::to_string(rank) + " has not the mean of both workers");
          }
        }
      };
      must(session->start());
      set(rank == 0 ? 1.0f : 4.0f);
      must(session->step(1, nullptr));
      is(2.5f);
      set(rank == 0 ? 1.0f : 4.0f);
      must(session->barrier(Session::Mode::kWait).value()->status());
      const double begin = now();
      for (int i = 0; i < repeats; ++i) must(session->step(1, nullptr));
      if (rank == 0) seconds = (now() - begin) / repeats;
      is(2.5f);
      must(session->close(std::chrono::seconds(10)));
    };
    std::thread other(worker, 1);
    worker(0);
    other.join();
    row("step of a worker on the GPU and one on the CPU", seconds, bytes, "the slower of wire and staging");
  }

  const Options options_;
  const std::shared_ptr<device::Device> device_;
  const std::unique_ptr<device::WorkQueue> queue_, other_;
  double staging_ = 0;  // seconds of this round's plain copies both ways at once
};

int main_(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (option == "--gpus") return std::printf("%d\n", device::gpus()) < 0;
    if (option == "--rounds" && value) {
      options.rounds = std::atoi(argv[++i]);
    } else if (option == "--scale" && value) {
      options.scale = std::atof(argv[++i]);
    } else if (option == "--device" && value && std::strncmp(value, "cuda:", 5) == 0) {
      options.device = argv[++i];
    } else {
      std::fprintf(option == "--help" ? stdout : stderr, "usage: bench [--rounds N] [--scale PART] [--device cuda:0] | --gpus\n");
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

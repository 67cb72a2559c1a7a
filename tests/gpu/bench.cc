// Measures a device's work on the buckets of a step against its own copy bandwidth: update, fuse, unfuse,
// local reduce, a whole step; staging, against plain copies; what a step costs the host; a step with a worker
// on the CPU, against what carries it. Writes one CSV line per measurement and round:
// name,seconds,bytes,limit (the measurement that it is compared with, from the same round). After each one
// some of the results are compared with the host's; a wrong one ends all.
//
//   gpu_bench [--rounds N] [--scale PART] [--device cuda:0]      scale 1: 100 million parameters
//   gpu_bench --gpus                                             how many there are
#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "core/device/device.h"
#include "core/optimizer/optimizer.h"
#include "core/session/head_process.h"
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
  std::fprintf(stderr, "gpu_bench: %s\n", what.c_str());
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

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ResNet-50's parameters, in the order of the layers: 161 tensors, 25.6 million elements.
std::vector<size_t> resnet50() {
  std::vector<size_t> tensors = {64 * 3 * 7 * 7, 64, 64};
  size_t in = 64;
  const size_t blocks[] = {3, 4, 6, 3};
  for (size_t stage = 0; stage < 4; ++stage) {
    const size_t planes = size_t{64} << stage, out = 4 * planes;
    for (size_t block = 0; block < blocks[stage]; ++block) {
      for (size_t n :
           {in * planes, planes, planes, planes * planes * 9, planes, planes, planes * out, out, out})
        tensors.push_back(n);
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
  int device = 0;
};

// Normal numbers, which operands are filled with again and again: a GPU is faster with zeros. Pinned.
class Numbers {
 public:
  static constexpr size_t kPeriod = 1 << 20, kOffsets = 256;
  explicit Numbers(device::Device& device)
      : numbers_(must(device.allocate_staging(2 * (kPeriod + kOffsets) * sizeof(float)))) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < kPeriod + kOffsets; ++i) {
      const float number = normal(random);
      at()[i] = number;
      at()[kPeriod + kOffsets + i] = number * number;
    }
  }
  const float* normal(size_t which) const { return at() + which; }    // up to kOffsets, each another content
  const float* squares() const { return at() + kPeriod + kOffsets; }  // not negative, as Adam's second state

 private:
  float* at() const { return static_cast<float*>(numbers_.get()); }
  const std::shared_ptr<void> numbers_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        device_(must(device::Device::open(device::cuda_backend(), options.device))),
        queue_(must(device_->new_queue())),
        other_(must(device_->new_queue())),
        host_(must(device::Device::host()->new_queue())),
        numbers_(*device_),
        seen_(must(device_->allocate_staging(kWindow * sizeof(float)))) {
    std::printf("# %s\n", device_->describe().c_str());
    if (options.scale < 1)
      std::printf("# scale %g: small sizes, which say nothing of speed\n", options.scale);
    std::printf("name,seconds,bytes,limit\n");
  }

  void run() {
    for (int round = 0; round < options_.rounds; ++round) {
      for (const auto& [name, settings, bytes] :
           {std::tuple("sgd", "lr=1e-3 momentum=0.9", 20.0), std::tuple("adamw", "lr=1e-3", 28.0)}) {
        update(name, settings, bytes);
        // It also reads the gradients and writes them into a bucket.
        whole_step(name, settings, bytes + 8);
      }
      fusion();
      local_reduce(2);
      local_reduce(4);
      staging();
      step_of_many();
      step_beside_the_cpu();
    }
  }

 private:
  static constexpr size_t kWindow = 256;  // elements that are looked at, here and there

  using Memory = std::shared_ptr<void>;
  Memory floats(size_t count) { return must(device_->allocate(count * sizeof(float))); }
  static float* at(const Memory& memory, size_t position = 0) {
    return static_cast<float*>(memory.get()) + position;
  }
  bool small() const { return options_.scale < 1; }
  size_t scaled(size_t count) const {
    return std::max<size_t>(1024, static_cast<size_t>(static_cast<double>(count) * options_.scale));
  }
  std::vector<size_t> scaled_resnet50() const {
    std::vector<size_t> tensors = resnet50();
    for (size_t& n : tensors)
      n = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(n) * std::min(1.0, options_.scale)));
    return tensors;
  }
  size_t staged_bytes() const { return scaled(16 << 20) * sizeof(float); }  // 64 MiB

  // `content`: of Numbers, whose elements come again and again.
  void fill(float* there, size_t count, const float* content) {
    for (size_t i = 0; i < count; i += Numbers::kPeriod) {
      must(queue_->copy(there + i, content, std::min(count - i, Numbers::kPeriod) * sizeof(float)));
    }
    must(device::finish(*device_, *queue_));
  }
  static std::vector<float> part_of(const float* content, size_t from, size_t count) {
    std::vector<float> part(count);
    for (size_t i = 0; i < count; ++i) part[i] = content[(from + i) % Numbers::kPeriod];
    return part;
  }
  // Where those that are looked at begin: at the first, in the middle, up to the last.
  static std::vector<size_t> windows(size_t count) {
    if (count <= kWindow) return {0};
    return {0, (count - kWindow) / 2, count - kWindow};
  }
  void expect(const std::string& name, const float* there, const std::vector<float>& expected) {
    must(queue_->copy(seen_.get(), there, expected.size() * sizeof(float)));
    must(device::finish(*device_, *queue_));
    if (!std::equal(expected.begin(), expected.end(), at(seen_))) fail(name + ": the result is wrong");
  }
  void expect_all(const std::string& name, const float* there, size_t count, const float* content,
                  size_t from = 0) {
    const size_t size = std::min(count, kWindow);
    for (size_t window : windows(count)) expect(name, there + window, part_of(content, from + window, size));
  }

  // Returns the seconds per call. Warms the device up, then enqueues calls until their total is long against
  // the clock's resolution.
  double time_with(const std::function<void()>& enqueue, const std::function<void()>& finish) const {
    const double begin = now(), warm = small() ? 0 : 0.3, least = small() ? 1e-4 : 0.05;
    for (int calls = 1;;) {
      const double before = now();
      for (int i = 0; i < calls; ++i) enqueue();
      finish();
      const double seconds = now() - before;
      if (seconds >= least && before - begin >= warm) return seconds / calls;
      if (seconds < least) calls *= 2;
    }
  }
  double time(const std::function<void()>& enqueue) {
    return time_with(enqueue, [this] { must(device::finish(*device_, *queue_)); });
  }
  void row(const std::string& name, double seconds, double bytes, const std::string& limit) {
    std::printf("%s,%.9f,%.0f,%s\n", name.c_str(), seconds, bytes, limit.c_str());
    std::fflush(stdout);
  }

  // Element-wise work: element i of the results depends only on element i of the operands, so the host
  // recomputes a window and compares.
  using Work =
      std::function<void(device::WorkQueue& queue, size_t count, const std::vector<float*>& operands)>;
  void measure(const std::string& name, double bytes, const std::string& limit, size_t count,
               const std::vector<const float*>& contents, const Work& work) {
    std::vector<Memory> memory;
    std::vector<float*> operands;
    for (const float* content : contents) {
      memory.push_back(floats(count));
      operands.push_back(at(memory.back()));
      fill(operands.back(), count, content);
    }
    int calls = 0;
    const double seconds = time([&] {
      work(*queue_, count, operands);
      ++calls;
    });
    const size_t size = std::min(count, kWindow);
    for (size_t window : windows(count)) {
      std::vector<std::vector<float>> expected;
      for (const float* content : contents) expected.push_back(part_of(content, window, size));
      std::vector<float*> on_host;
      for (auto& operand : expected) on_host.push_back(operand.data());
      for (int i = 0; i < calls; ++i) work(*host_, size, on_host);
      for (size_t o = 0; o < operands.size(); ++o) expect(name, operands[o] + window, expected[o]);
    }
    row(name, seconds, bytes, limit);
  }

  // Measures a device copy of as many bytes (at most 100 million floats, which exceed the caches), as the
  // limit of `name`.
  std::string copy_beside(const std::string& name, double bytes) {
    const std::string limit = "device copy beside " + name;
    const size_t count = std::min(static_cast<size_t>(bytes / 8), scaled(100'000'000));
    measure(limit, 8.0 * static_cast<double>(count), "", count, {numbers_.normal(0), numbers_.normal(1)},
            [](device::WorkQueue& queue, size_t n, const std::vector<float*>& of) {
              must(queue.copy(of[1], of[0], n * sizeof(float)));
            });
    return limit;
  }

  void update(const std::string& optimizer, const char* settings, double bytes_each) {
    const size_t count = scaled(100'000'000);
    const std::string name = "update " + optimizer;
    const double bytes = bytes_each * static_cast<double>(count);
    const UpdateRule rule = must(Optimizer::make(optimizer, settings))->rule(10, {});
    const std::string limit = copy_beside(name, bytes);
    measure(name, bytes, limit, count,
            {numbers_.normal(0), numbers_.normal(1), numbers_.normal(2), numbers_.squares()},
            [&](device::WorkQueue& queue, size_t n, const std::vector<float*>& of) {
              const UpdatePiece piece{0, n, 4, 0, 1, Action::kUpdate, rule, {of[2], of[3], nullptr}};
              void* target = of[1];
              must(queue.update(DType::kFloat32, {&piece, 1}, {&target, 1}, of[0]));
            });
  }

  void fusion() {
    std::vector<Memory> gradients;
    std::vector<SumPiece> pieces;
    std::vector<Term> terms;
    std::vector<UpdatePiece> copies;
    std::vector<void*> targets;
    size_t total = 0, used = 0;
    for (size_t n : scaled_resnet50()) {
      const size_t t = gradients.size();
      gradients.push_back(floats(n));
      fill(at(gradients[t]), n, numbers_.normal(t));
      pieces.push_back({total, n, static_cast<uint32_t>(t), 1});
      terms.push_back({gradients[t].get(), 1});
      copies.push_back({total, n, 1, static_cast<uint32_t>(t), 1, Action::kCopy, {}, {}});
      targets.push_back(gradients[t].get());
      used += n;
      total += (n + 15) / 16 * 16;
    }
    const Memory bucket = floats(total);
    const double bytes = 8.0 * static_cast<double>(used);
    std::string name = "fuse 161 tensors", limit = copy_beside(name, bytes);
    double seconds = time([&] { must(queue_->sum(DType::kFloat32, pieces, terms, bucket.get())); });
    for (size_t t = 0; t < pieces.size(); ++t)
      expect_all(name, at(bucket, pieces[t].position), pieces[t].count, numbers_.normal(t));
    row(name, seconds, bytes, limit);

    name = "unfuse 161 tensors", limit = copy_beside(name, bytes);
    fill(at(bucket), total, numbers_.squares());
    seconds = time([&] { must(queue_->update(DType::kFloat32, copies, targets, bucket.get())); });
    for (size_t t = 0; t < pieces.size(); ++t) {
      expect_all(name, at(gradients[t]), pieces[t].count, numbers_.squares(), pieces[t].position);
    }
    row(name, seconds, bytes, limit);
  }

  void local_reduce(uint32_t replicas) {
    const size_t count = scaled(50'000'000);
    const std::string name = "reduce of " + std::to_string(replicas) + " replicas";
    const double bytes = 4.0 * static_cast<double>(count) * (replicas + 1);
    std::vector<const float*> contents;  // the bucket's at last
    for (size_t r = 0; r <= replicas; ++r) contents.push_back(numbers_.normal(r));
    const std::string limit = copy_beside(name, bytes);
    measure(name, bytes, limit, count, contents,
            [&](device::WorkQueue& queue, size_t n, const std::vector<float*>& of) {
              std::vector<Term> terms;
              for (uint32_t r = 0; r < replicas; ++r) terms.push_back({of[r], 1.0 + r});
              const SumPiece piece{0, n, 0, replicas};
              must(queue.sum(DType::kFloat32, {&piece, 1}, terms, of[replicas]));
            });
  }

  // 64 MiB to the device, to the host, and both at once: `copy` with either of them, and `finish`.
  struct Places {
    float *from, *there, *back, *to;
  };
  std::vector<double> ways(const std::vector<std::string>& names, const std::vector<std::string>& limits,
                           const Places& at, const std::function<void(bool goes_up, bool comes_down)>& copy,
                           const std::function<void()>& finish) {
    const size_t nbytes = staged_bytes(), count = nbytes / sizeof(float);
    std::vector<double> seconds;
    for (size_t way = 0; way < 3; ++way) {
      const bool goes_up = way != 1, comes_down = way != 0;
      for (size_t i = 0; i < count; ++i) at.from[i] = numbers_.normal(1)[i % Numbers::kPeriod];
      std::fill_n(at.to, count, 0.0f);
      fill(at.there, count, numbers_.normal(0));
      fill(at.back, count, numbers_.normal(2));
      seconds.push_back(time_with([&] { copy(goes_up, comes_down); }, finish));
      if (goes_up) expect_all(names[way], at.there, count, numbers_.normal(1));
      if (comes_down) expect_all(names[way], at.to, count, numbers_.normal(2));
      row(names[way], seconds.back(), static_cast<double>(nbytes) * (goes_up && comes_down ? 2 : 1),
          limits[way]);
    }
    return seconds;
  }

  // Pinned memory as a step uses it, through queues; and as a program that knows nothing of dsgd would.
  void staging() {
    const size_t nbytes = staged_bytes();
    const std::vector<std::string> plain = {"plain copy to the device", "plain copy to the host",
                                            "plain copies both ways at once"};
    {
      must(cudaSetDevice(device_->index()));
      cudaStream_t up, down;
      must(cudaStreamCreateWithFlags(&up, cudaStreamNonBlocking));
      must(cudaStreamCreateWithFlags(&down, cudaStreamNonBlocking));
      void *there, *back, *from, *to;
      for (void** memory : {&there, &back}) must(cudaMalloc(memory, nbytes));
      for (void** memory : {&from, &to}) must(cudaHostAlloc(memory, nbytes, cudaHostAllocPortable));
      const auto seconds = ways(
          plain, {"", "", ""},
          {static_cast<float*>(from), static_cast<float*>(there), static_cast<float*>(back),
           static_cast<float*>(to)},
          [&](bool goes_up, bool comes_down) {
            if (goes_up) must(cudaMemcpyAsync(there, from, nbytes, cudaMemcpyHostToDevice, up));
            if (comes_down) must(cudaMemcpyAsync(to, back, nbytes, cudaMemcpyDeviceToHost, down));
          },
          [&] {
            must(cudaStreamSynchronize(up));
            must(cudaStreamSynchronize(down));
          });
      staging_ = seconds[2];
      for (void* memory : {there, back}) must(cudaFree(memory));
      for (void* memory : {from, to}) must(cudaFreeHost(memory));
      must(cudaStreamDestroy(up));
      must(cudaStreamDestroy(down));
    }
    const Memory there = must(device_->allocate(nbytes)), back = must(device_->allocate(nbytes));
    const Memory up = must(device_->allocate_staging(nbytes)), down = must(device_->allocate_staging(nbytes));
    ways(
        {"to the device", "to the host", "both ways at once"}, plain, {at(up), at(there), at(back), at(down)},
        [&](bool goes_up, bool comes_down) {
          if (goes_up) must(queue_->copy(there.get(), up.get(), nbytes));
          if (comes_down) must(other_->copy(down.get(), back.get(), nbytes));
        },
        [&] {
          must(device::finish(*device_, *queue_));
          must(device::finish(*device_, *other_));
        });
  }

  using Settings = std::vector<std::pair<std::string, std::string>>;
  std::shared_ptr<Session> open(const Settings& settings) {
    Registered registered;
    registered.backends["cuda"] = []() -> Result<const device::Backend*> { return &device::cuda_backend(); };
    return must(Session::open(config(settings), transport::make_uv_environment(), std::make_shared<Log>(),
                              registered));
  }
  static Config config(const Settings& settings) {
    Config config;
    for (const auto& [key, value] : settings) must(config.set(key, value));
    return config;
  }

  // A session of one worker with tensors on the GPU, and what its steps must come to.
  class OneWorker {
   public:
    OneWorker(Bench& bench, const std::vector<size_t>& tensors, const std::string& optimizer,
              const std::string& settings)
        : bench_(bench), optimizer_(must(Optimizer::make(optimizer, settings))), session_(bench.open({})) {
      must(session_->set_optimizer(optimizer, settings));
      replica_ = must(session_->add_replica(bench.device_->name()));
      for (const size_t n : tensors) {
        const int64_t count = static_cast<int64_t>(n);
        const std::string name = std::string("p") + std::to_string(parameters_.size());
        parameters_.push_back(must(session_->add_parameter(name, DType::kFloat32, {&count, 1}, true)));
        memory_.push_back(must(session_->alloc(replica_, parameters_.back())));
        bench.fill(static_cast<float*>(memory_.back()->value), n, bench.numbers_.normal(0));
        bench.fill(static_cast<float*>(memory_.back()->gradient), n, bench.numbers_.normal(1));
      }
      must(session_->start());
      must(cudaSetDevice(bench.device_->index()));
    }
    void step() {
      auto operation = must(session_->step_begin(1));
      for (Parameter* parameter : parameters_) must(session_->gradient_ready(replica_, parameter, nullptr));
      must(session_->wait(*operation, std::chrono::milliseconds(-1)));
      ++steps_;
    }
    // New values come before what the default stream does next.
    static void synchronize() { must(cudaStreamSynchronize(nullptr)); }
    void close(const std::string& name) {
      for (size_t t = 0; t < parameters_.size(); ++t) {
        for (size_t window : windows(parameters_[t]->count)) check(name, t, window);
      }
      must(session_->close(std::chrono::seconds(10)));
    }

   private:
    void check(const std::string& name, size_t tensor, size_t window) {
      const size_t count = std::min(parameters_[tensor]->count, kWindow);
      std::vector<float> value = part_of(bench_.numbers_.normal(0), window, count), first(count),
                         second(count);
      const std::vector<float> gradient = part_of(bench_.numbers_.normal(1), window, count);
      for (uint64_t step = 0; step < steps_; ++step) {
        const UpdatePiece piece{0,
                                count,
                                1,
                                0,
                                1,
                                Action::kUpdate,
                                optimizer_->rule(step, {}),
                                {first.data(), second.data(), nullptr}};
        void* target = value.data();
        must(bench_.host_->update(DType::kFloat32, {&piece, 1}, {&target, 1}, gradient.data()));
      }
      bench_.expect(name, static_cast<float*>(memory_[tensor]->value) + window, value);
    }

    Bench& bench_;
    const std::unique_ptr<Optimizer> optimizer_;
    const std::shared_ptr<Session> session_;
    Replica* replica_ = nullptr;
    std::vector<Parameter*> parameters_;
    std::vector<std::shared_ptr<TensorMemory>> memory_;
    uint64_t steps_ = 0;
  };

  // The same work as a step of PyTorch's optimizer, on one tensor.
  void whole_step(const std::string& optimizer, const char* settings, double bytes_each) {
    const size_t count = scaled(100'000'000);
    const std::string name = "step " + optimizer;
    const double bytes = bytes_each * static_cast<double>(count);
    const std::string limit = copy_beside(name, bytes);
    OneWorker worker(*this, {count}, optimizer, settings);
    const double seconds = time_with([&] { worker.step(); }, worker.synchronize);
    worker.close(name);
    row(name, seconds, bytes, limit);
  }

  // ResNet-50's tensors: what the host's CPUs do per step, and how long it takes.
  void step_of_many() {
    OneWorker worker(*this, scaled_resnet50(), "sgd", "lr=1e-3 momentum=0.9");
    const auto cpu = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
      };
      return seconds(usage.ru_utime) + seconds(usage.ru_stime);
    };
    const double seconds = time_with([&] { worker.step(); }, worker.synchronize);
    const int steps = small() ? 5 : 200;
    double of_host = 0;
    for (int i = 0; i < steps; ++i) {  // each on a device at rest: where the queue is full, the driver waits
      const double before = cpu();
      worker.step();
      of_host += cpu() - before;
      worker.synchronize();
    }
    worker.close("a step with 161 tensors");
    row("host CPU time of a step with 161 tensors", of_host / steps, 0, "");
    row("time of a step with 161 tensors", seconds, 0, "");
  }

  // Two workers, of which one has the GPU, average gradients by RPC over TCP on loopback. The slower of two
  // ways is the limit: the wire with as many bytes both ways at once, and copies of as many bytes to the host
  // and to the device at once.
  void step_beside_the_cpu() {
    constexpr int64_t kParameters = 16;
    const int64_t count = static_cast<int64_t>(staged_bytes() / sizeof(float)) / kParameters;
    const double bytes = static_cast<double>(kParameters * count) * sizeof(float);
    Wire wire(static_cast<size_t>(bytes));
    const int repeats = small() ? 3 : 10;
    wire.exchange();
    double by_wire = 0;
    for (int i = 0; i < repeats; ++i) by_wire += wire.exchange() / repeats;
    row("wire both ways at once", by_wire, bytes, "");
    row("the slower of wire and staging", std::max(by_wire, staging_), bytes, "");

    auto head = must(HeadProcess::start(config({{"head", "127.0.0.1:0"}, {"num_workers", "2"}}),
                                        transport::make_uv_environment(), std::make_shared<Log>()));
    double seconds = 0;
    const auto worker = [&](int rank) {
      auto session = open({{"head", head->address()},
                           {"num_workers", "2"},
                           {"rank", std::to_string(rank)},
                           {"embed_head", "never"}});
      must(session->set_optimizer("sgd", "lr=1"));  // so that values show each step
      Replica* replica = must(session->add_replica(rank == 0 ? device_->name() : "cpu"));
      device::Access access(replica->device);
      std::vector<std::shared_ptr<TensorMemory>> tensors;
      for (int64_t p = 0; p < kParameters; ++p) {
        Parameter* parameter = must(
            session->add_parameter(std::string("p") + std::to_string(p), DType::kFloat32, {&count, 1}, true));
        tensors.push_back(must(session->alloc(replica, parameter)));
      }
      const std::vector<float> gradient(static_cast<size_t>(count), rank == 0 ? 1.0f : 4.0f);
      for (const auto& tensor : tensors) access.write(tensor->gradient, gradient);
      must(session->start());
      must(session->step(1, nullptr));
      must(session->barrier(Session::Mode::kWait).value()->status());
      const double begin = now();
      for (int i = 0; i < repeats; ++i) must(session->step(1, nullptr));
      if (rank == 0) seconds = (now() - begin) / repeats;
      const std::vector<float> expected(static_cast<size_t>(count), -2.5f * static_cast<float>(1 + repeats));
      for (const auto& tensor : tensors) {
        if (access.read<float>(tensor->value, static_cast<size_t>(count)) != expected) {
          fail("rank " + std::to_string(rank) + " has not what as many means of both workers come to");
        }
      }
      must(session->close(std::chrono::seconds(10)));
    };
    std::thread other(worker, 1);
    worker(0);
    other.join();
    row("step of a worker on the GPU and one on the CPU", seconds, bytes, "the slower of wire and staging");
  }

  const Options options_;
  const std::shared_ptr<device::Device> device_;
  const std::unique_ptr<device::WorkQueue> queue_, other_, host_;
  const Numbers numbers_;
  const Memory seen_;
  double staging_ = 0;  // seconds of this round's plain copies both ways at once
};

template <typename Number>
bool parse(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

int main_(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    const char* expected = nullptr;
    if (option == "--gpus") return std::printf("%d\n", device::gpus()) < 0;
    if (option == "--rounds") {
      if (!parse(value, &options.rounds) || options.rounds < 1) expected = "a number of at least 1";
    } else if (option == "--scale") {
      if (!parse(value, &options.scale) || !(options.scale > 0 && options.scale <= 10))
        expected = "a number above 0, and up to 10";
    } else if (option == "--device") {
      const bool named = value.starts_with("cuda:") && parse(value.substr(5), &options.device);
      if (!named || options.device < 0) expected = "a GPU, such as cuda:0,";
    } else {
      std::fprintf(option == "--help" ? stdout : stderr,
                   "usage: gpu_bench [--rounds N] [--scale PART] [--device cuda:0] | --gpus\n");
      return option == "--help" ? 0 : 2;
    }
    if (expected) {
      std::fprintf(stderr, "gpu_bench: %s '%s': %s is expected\n", argv[i], std::string(value).c_str(),
                   expected);
      return 2;
    }
    ++i;
  }
  Bench(options).run();
  return 0;
}

}  // namespace
}  // namespace dsgd

int main(int argc, char** argv) { return dsgd::main_(argc, argv); }

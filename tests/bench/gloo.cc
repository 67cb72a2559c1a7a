// Measures Gloo's float32 sum all-reduce as allreduce.c measures dsgd's: a peer to compare with. It starts
// its workers itself, one process each, connected by TCP on loopback.
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "timing.h"
}

namespace {

constexpr char kHelp[] =
    "bench_gloo [--workers N] [--algorithm NAME] [--sizes 1K,64K,1M,16M,100M] [--rounds N]\n"
    "\n"
    "Measures Gloo's all-reduce of float32 sums in place over TCP and checks every result.\n"
    "Prints the CSV of bench_allreduce.\n"
    "  --workers    processes on this machine (default: 2)\n"
    "  --algorithm  ring (default), ring_chunked, halving_doubling or bcube\n"
    "  --sizes      bytes per worker; K, M, G are powers of 1024\n"
    "  --rounds     timed operations per size; by default 5 (100M) to 200 (1M and less)";

using Context = std::shared_ptr<gloo::Context>;

// Gloo's function picks its ring; its older classes prepare the buffer once, outside of the timed part.
std::function<void()> prepare(const std::string& algorithm, const Context& context, float* data, int count) {
  const std::vector<float*> buffers{data};
  std::shared_ptr<gloo::Algorithm> prepared;
  if (algorithm == "ring_chunked") {
    prepared = std::make_shared<gloo::AllreduceRingChunked<float>>(context, buffers, count);
  } else if (algorithm == "halving_doubling") {
    prepared = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context, buffers, count);
  } else if (algorithm == "bcube") {
    prepared = std::make_shared<gloo::AllreduceBcube<float>>(context, buffers, count);
  } else if (algorithm != "ring") {
    die("unknown algorithm '%s'; see --help", algorithm.c_str());
  }
  if (prepared) return [prepared] { prepared->run(); };
  return [context, data, count] {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(data, static_cast<size_t>(count));
    options.setReduceFunction(
        [](void* to, const void* a, const void* b, size_t n) { gloo::sum<float>(to, a, b, n); });
    gloo::allreduce(options);
  };
}

void measure(const Context& context, const std::string& algorithm, size_t bytes, size_t rounds) {
  constexpr size_t kWarmUp = 2;
  std::vector<float> data(bytes / sizeof(float));
  std::vector<double> times(rounds);
  const auto run = prepare(algorithm, context, data.data(), static_cast<int>(data.size()));
  gloo::BarrierOptions barrier(context);
  for (size_t round = 0; round < kWarmUp + rounds; ++round) {
    write_addends(data.data(), data.size(), context->rank, round);
    gloo::barrier(barrier);
    const double began = now_us();
    run();
    if (round >= kWarmUp) times[round - kWarmUp] = now_us() - began;
    check_sums(data.data(), data.size(), context->size, round);
  }
  // An operation takes as long as its slowest worker.
  gloo::AllreduceOptions slowest(context);
  slowest.setOutput(times.data(), times.size());
  slowest.setReduceFunction(
      [](void* to, const void* a, const void* b, size_t n) { gloo::max<double>(to, a, b, n); });
  gloo::allreduce(slowest);
  if (context->rank == 0) print_allreduce(context->size, bytes, algorithm.c_str(), times.data(), rounds);
}

int work(int rank, int workers, const std::string& folder, int argc, char** argv) {
  size_t sizes[kMaxSizes];
  const size_t size_count = parse_sizes(option(argc, argv, "--sizes", "1K,64K,1M,16M,100M"), sizes);
  const auto rounds = static_cast<size_t>(count_option(argc, argv, "--rounds"));
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(folder);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, workers);
  context->connectFullMesh(store, device);
  if (rank == 0) puts(kAllreduceColumns);
  for (size_t s = 0; s < size_count; ++s)
    measure(context, option(argc, argv, "--algorithm", "ring"), sizes[s],
            rounds ? rounds : default_rounds(sizes[s]));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) return puts(kHelp) < 0;
  static const char* const kOptions[] = {"--workers", "--algorithm", "--sizes", "--rounds", nullptr};
  check_options(argc, argv, kOptions);
  const long asked = count_option(argc, argv, "--workers");
  const int workers = asked ? static_cast<int>(asked) : 2;
  char folder[] = "/tmp/bench-gloo-XXXXXX";
  if (!mkdtemp(folder)) die("cannot make a folder in /tmp");
  for (int rank = 0; rank < workers; ++rank) {
    const pid_t worker = fork();
    if (worker < 0) die("cannot start worker %d", rank);
    if (worker != 0) continue;
    try {
      return work(rank, workers, folder, argc, argv);
    } catch (const std::exception& error) {
      die("worker %d: %s", rank, error.what());
    }
  }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed |= status != 0;
  std::filesystem::remove_all(folder);
  return failed;
}

#include "cluster.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "tests/unit/checkpoint/with_files.h"
#include "transport/sim/kernel.h"

namespace dsgd::simulation {

using namespace std::chrono_literals;
using transport::Death;
using transport::ProcessId;

namespace {

std::string head_host(int machine) { return machine == 0 ? "node0" : "spare" + std::to_string(machine); }

std::string head_addresses(const ClusterOptions& options) {
  std::string all = head_host(0) + ":7700";
  for (int machine = 1; machine < options.head_machines; ++machine) all += "," + head_host(machine) + ":7700";
  return all;
}

// `head`: the key's value.
Config config_of(const ClusterOptions& options, int rank, const std::string& head) {
  Config config;
  for (const auto& [name, algorithm] : options.registered.algorithms) config.allow("algorithm", name);
  std::map<std::string, std::string> values = {
      {"head", head},
      {"token", "secret"},
      {"num_workers", std::to_string(options.workers)},
      {"embed_head", !options.separate_head && rank == 0 ? "auto" : "never"},
      {"lease", "1s"},
      {"step_timeout", "60s"},
      {"init_timeout", "3s"},
      {"receive_memory", "1M"}};
  if (rank < 0 && options.durable_head) values["head_state"] = "./head";
  if (rank >= 0 && rank < options.workers) values["rank"] = std::to_string(rank);
  for (const auto& [key, value] : options.settings) values[key] = value;
  if (const auto own = options.own_settings.find(rank); own != options.own_settings.end())
    for (const auto& [key, value] : own->second) values[key] = value;
  for (const auto& [key, value] : values) {
    if (Status status = config.set(key, value); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      std::abort();
    }
  }
  return config;
}

}  // namespace

// A disk that all processes share. A change takes a while; one that is under way when its process is killed
// may have been made or not.
class Cluster::DiskFiles final : public transport::Files {
 public:
  DiskFiles(Cluster& cluster, ProcessId process)
      : cluster_(cluster), process_(process), files_(cluster.disk_) {}
  Status run(std::function<void()> work) override {
    auto& world = cluster_.world;
    const auto most =
        static_cast<uint64_t>(std::chrono::nanoseconds(world.random() % 10 ? 2ms : 300ms).count());
    free_at_ = std::max({free_at_, cluster_.disk_back_at, world.now()}) +
               std::chrono::nanoseconds(world.random() % most);
    world.at(free_at_, [&world, process = process_, work = std::move(work)] {
      if (world.alive(process)) work();
    });
    return {};
  }
  Status make_folder(const std::string& path) override { return files_.make_folder(path); }
  Result<std::string> resolve(const std::string& path) override { return files_.resolve(path); }
  Status write(const std::string& path, std::span<const std::span<const std::byte>> parts,
               transport::Access access) override {
    return files_.write(path, parts, access);
  }
  Status rename(const std::string& from, const std::string& to) override { return files_.rename(from, to); }
  Status sync_folder(const std::string& path) override { return files_.sync_folder(path); }
  Status remove_file(const std::string& path) override { return files_.remove_file(path); }
  Status remove_folder(const std::string& path) override { return files_.remove_folder(path); }
  Result<std::vector<std::string>> list(const std::string& folder) override { return files_.list(folder); }
  Result<std::unique_ptr<transport::ReadableFile>> open(const std::string& path) override {
    return files_.open(path);
  }
  // The system unlocks the files of a process that dies.
  Result<std::unique_ptr<transport::FileLock>> lock(const std::string& path) override {
    const auto held = cluster_.locks_.find(path);
    if (held != cluster_.locks_.end() && cluster_.world.alive(held->second))
      return Status(Code::kExists, "'" + path + "' is locked");
    cluster_.locks_[path] = process_;
    return std::make_unique<transport::FileLock>();
  }

 private:
  Cluster& cluster_;
  const ProcessId process_;
  dsgd_test::MemoryFiles files_;
  transport::Time free_at_{};
};

Cluster::Cluster(ClusterOptions options, Program program)
    : world(options.seed, options.network),
      options_(std::move(options)),
      program_(std::move(program)),
      calls_(static_cast<size_t>(all())),
      logs_(static_cast<size_t>(all())),
      warnings_(static_cast<size_t>(all())),
      finished_(static_cast<size_t>(all()), 0),
      sessions_(static_cast<size_t>(all())),
      disk_(options_.disk ? options_.disk : std::make_shared<dsgd_test::MemoryDisk>()) {
  for (int rank = 0; rank < all(); ++rank) {
    const std::string host =
        options_.separate_head ? "node" + std::to_string(rank + 1) : "node" + std::to_string(rank);
    processes_.push_back(world.start_process(host));
    if (rank < options_.workers) start_worker(rank);
  }
  if (options_.separate_head) start_head();
}

void Cluster::kill_head(Death death) { world.kill(processes_.back(), death); }

void Cluster::start_head() {
  const std::string host = head_host(heads_++ % options_.head_machines);
  start_head_process(host, config_of(options_, -1, host + ":7700"));
}

void Cluster::start_other_head() {
  const std::string host = head_host((heads_ - 1) % options_.head_machines);
  Config config = config_of(options_, -1, host + ":7700");
  if (!config.set("token", "other").ok() || !config.set("head_state", "").ok()) std::abort();
  start_head_process(host, config);
}

void Cluster::start_head_process(const std::string& host, const Config& config) {
  if (stop_head_) return;  // the test has ended before this event
  processes_.push_back(world.start_process(host));
  world.start_program(processes_.back(), [this, config, process = processes_.back()] {
    if (auto ended = run_head(world, with_disk(process), config, stop_head_)) head_result_ = std::move(ended);
  });
}

std::unique_ptr<transport::Environment> Cluster::with_disk(ProcessId process) {
  return std::make_unique<dsgd_test::WithFiles>(world.environment(process),
                                                std::make_shared<DiskFiles>(*this, process));
}

Cluster::~Cluster() {
  stop_head_ = true;
  end_all(world, processes_, "seed " + std::to_string(options_.seed));
}

void Cluster::start_worker(int rank) {
  world.start_program(process(rank), [this, rank] { run_worker(rank); });
}

void Cluster::run_worker(int rank) {
  const auto at = static_cast<size_t>(rank);
  auto log = log_of(world, "worker " + std::to_string(rank), [this, at](const LogRecord& record) {
    logs_[at].push_back(record.message);
    if (record.level <= LogLevel::kWarning) warnings_[at].push_back({world.now(), record.message});
  });
  std::shared_ptr<Session> session;
  note(rank, "open", [&] {
    auto opened =
        Session::open(config_of(options_, rank, head_addresses(options_)),
                      options_.files ? with_disk(processes_[at]) : world.environment(processes_[at]), log,
                      options_.registered);
    if (opened.ok()) session = std::move(opened).value();
    return opened.status();
  });
  if (session) {
    sessions_[at] = session.get();
    program_(*this, *session, rank);
    note(rank, "close", [&] { return session->close(-1ms); });
    sessions_[at] = nullptr;
  }
  session.reset();
  finished_[at] = 1;
}

void Cluster::pass_time(int rank, transport::Duration duration) {
  const std::atomic<bool> never = false;
  world.kernel().wait(world.kernel().process(process(rank)), never, world.now() + duration);
}

bool Cluster::note(int rank, const std::string& name, const std::function<Status()>& call) {
  return note_call(world, calls_[static_cast<size_t>(rank)], name, call);
}

const NotedCall* Cluster::call(int rank, const std::string& name) const {
  const NotedCall* found = nullptr;
  for (const NotedCall& noted : calls(rank)) {
    if (noted.name == name) found = &noted;
  }
  return found;
}

const NotedCall* Cluster::first_failure(int rank) const {
  for (const NotedCall& noted : calls(rank)) {
    if (!noted.status.ok()) return &noted;
  }
  return nullptr;
}

std::string Cluster::history(int rank) const {
  std::string text;
  for (const NotedCall& noted : calls(rank)) {
    text += "  rank " + std::to_string(rank) + " " + noted.name + " at " +
            std::to_string(noted.began.count() / 1000) + " us, took " +
            std::to_string((noted.ended - noted.began).count() / 1000) +
            " us: " + code_name(noted.status.code()) + " " + std::to_string(noted.status.rank()) + " " +
            noted.status.message() + "\n";
  }
  return text;
}

std::string Cluster::histories() const {
  std::string text;
  for (int rank = 0; rank < all(); ++rank) text += history(rank);
  return text;
}

ProcessId Cluster::process(int rank) const {
  return rank < 0 ? processes_.back() : processes_.at(static_cast<size_t>(rank));
}

bool Cluster::run_until_ended(transport::Duration limit) {
  return world.run_until(
      [this] {
        for (int rank = 0; rank < all(); ++rank) {
          const auto& process = world.kernel().process(processes_[static_cast<size_t>(rank)]);
          if (!process.paused && !process.dead && !finished(rank)) return false;
        }
        return true;
      },
      world.now() + limit);
}

bool Cluster::run_until_noted(int rank, const std::string& name, transport::Duration limit) {
  return world.run_until([&] { return call(rank, name) != nullptr; }, world.now() + limit);
}

bool Cluster::train(Cluster& cluster, Session& session, int rank, int steps) {
  constexpr size_t kElements = 4000;
  const int64_t shape[] = {kElements};
  const auto start = [&]() -> Status {  // the session may have failed by now
    auto parameter = session.add_parameter("p", DType::kFloat32, shape, true);
    if (!parameter.ok()) return parameter.status();
    auto replica = session.add_replica("cpu");
    if (!replica.ok()) return replica.status();
    auto memory = session.alloc(replica.value(), parameter.value());
    return memory.ok() ? session.start() : memory.status();
  };
  if (!cluster.note(rank, "start", start)) return false;
  for (int k = 0; k < steps; ++k) {
    StepResult result;
    if (!cluster.note(rank, "step " + std::to_string(k), [&] { return session.step(1, &result); }))
      return false;
  }
  return true;
}

}  // namespace dsgd::simulation

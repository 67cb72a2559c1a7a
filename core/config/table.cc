#include "core/config/table.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace dsgd {
namespace config {
namespace {

constexpr int64_t kMillisecond = 1'000'000, kSecond = 1000 * kMillisecond, kHour = 3600 * kSecond;
constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30, kTiB = kGiB * 1024;

// Alphabetical. The texts are what `dsgd config` and the documentation print.
constexpr Rule kRules[] = {
    {{"absent", "choice", "skip", "skip | zero",
      "How an absent gradient counts if another replica has one: skip leaves the replica's weight out of "
      "the mean; zero counts it as zero with its weight (as PyTorch's DistributedDataParallel); equal on "
      "all workers.",
      "DSGD_ABSENT"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"algorithm", "choice", "auto", "auto | direct | nccl | ring",
      "How the allreduce strategy moves bytes between workers: auto chooses by size and number of workers "
      "and lets NCCL reduce GPU gradients where possible; nccl is the same, but an error where not "
      "possible; a host may register more.",
      "DSGD_ALGORITHM"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"bucket_size", "size", "4M", "4K..1G",
      "Largest number of bytes of parameters that are fused into one bucket for communication; equal on all "
      "workers.",
      "DSGD_BUCKET_SIZE"},
     Type::kSize,
     4 * kKiB,
     kGiB,
     false,
     false},
    {{"checksum", "choice", "auto", "auto | always | never",
      "Whether connections carry checksums (CRC32C), so that changed bytes are found before they are used: "
      "those that leave the machine (auto), all of them (always), or only those whose other side wants them "
      "(never); gradients that NCCL moves carry none.",
      "DSGD_CHECKSUM"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"devices", "string", "cpu", "auto | DEVICE, DEVICE, ...",
      "Devices (cpu, or cuda:0 and so on) of the replicas that are added without naming one, in the order in "
      "which they are added; auto: every GPU that the process can use, or the cpu if there is none.",
      "DSGD_DEVICES"},
     Type::kDevices,
     0,
     0,
     false,
     false},
    {{"devices_per_worker", "integer", "0", "0..1024",
      "How many entries of `devices` each worker of a node takes, in the order of their local ranks; 0: "
      "all workers take all of them.",
      "DSGD_DEVICES_PER_WORKER"},
     Type::kInteger,
     0,
     1024,
     false,
     false},
    {{"embed_head", "choice", "auto", "auto | never",
      "Whether a worker that can bind `head` becomes the head itself (auto; where `rank` is set, only rank "
      "0 does) or always expects it elsewhere (never).",
      "DSGD_EMBED_HEAD"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"fingerprint", "string", "", "up to 4095 characters",
      "Text of the host's choice that must be equal on all workers, such as the versions of its model code "
      "and libraries; starting fails where it differs and shows both.",
      "DSGD_FINGERPRINT"},
     Type::kText,
     0,
     4095,
     false,
     true},
    {{"gradient_norm", "switch", "0", "0 | 1",
      "Whether each step computes the L2 norm of the mean gradient; costs the overlap of update and "
      "communication.",
      "DSGD_GRADIENT_NORM"},
     Type::kSwitch,
     0,
     1,
     false,
     false},
    {{"head", "string", "", "HOST:PORT | [IPV6]:PORT | unix:PATH",
      "Address of the head, equal on all workers; needed if num_workers is more than 1.", "DSGD_HEAD"},
     Type::kAddress,
     0,
     0,
     false,
     true},
    {{"heartbeat_interval", "duration", "0", "0 or 10ms..30m",
      "Twice the time between two renewals of a worker's lease; the job survives a network cut shorter than "
      "`lease` minus this time (or minus a twentieth of `lease`, if that is longer); at most half of "
      "`lease`; 0: "
      "a fifth of `lease`.",
      "DSGD_HEARTBEAT_INTERVAL"},
     Type::kDuration,
     10 * kMillisecond,
     kHour / 2,
     true,
     false},
    {{"init_timeout", "duration", "60s", "10ms..24h",
      "Time that joining a job may take: reaching the head and waiting until all workers have come.",
      "DSGD_INIT_TIMEOUT"},
     Type::kDuration,
     10 * kMillisecond,
     24 * kHour,
     false,
     false},
    {{"interface", "string", "", "NAME | ADDRESS | ADDRESS/BITS",
      "Network interface for the traffic between workers, by name, own address or CIDR prefix; empty: the "
      "one that routes to the head.",
      "DSGD_INTERFACE"},
     Type::kText,
     0,
     0,
     false,
     true},
    {{"internode", "choice", "rpc", "rpc | nccl",
      "How gradients of GPUs go from node to node, once NCCL has added up those of a node: through host "
      "memory and dsgd's connections (rpc), or by NCCL too, without checksums; equal on all workers.",
      "DSGD_INTERNODE"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"job", "string", "default", "1 to 255 characters",
      "Name of the job; a head admits only workers that give the same name.", "DSGD_JOB"},
     Type::kText,
     0,
     0,
     false,
     false},
    {{"launcher", "choice", "auto", "auto | none",
      "Whether num_workers, rank, head and job, where nothing else gives them, come from the environment "
      "of torchrun, PyTorch (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open MPI, MPICH or Slurm (auto) "
      "or not (none).",
      "DSGD_LAUNCHER"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"launcher_port", "integer", "0", "0..65535",
      "Port of `head` where its host comes from a launcher's environment; 0: MASTER_PORT + 1 with torchrun "
      "and PyTorch, else a number from 20000 to 29999 that the launcher's name for the job decides.",
      "DSGD_LAUNCHER_PORT"},
     Type::kInteger,
     0,
     65535,
     false,
     false},
    {{"lease", "duration", "10s", "500ms..1h",
      "Time without a sign of life after which a worker counts as lost; equal on all workers and the head.",
      "DSGD_LEASE"},
     Type::kDuration,
     500 * kMillisecond,
     kHour,
     false,
     false},
    {{"listen", "string", "", "HOST:PORT | [IPV6]:PORT | unix:PATH",
      "Address on which this worker accepts its peers, port 0 for any; empty: the address that reaches the "
      "head, any port.",
      "DSGD_LISTEN"},
     Type::kAddress,
     0,
     0,
     false,
     true},
    {{"log_level", "choice", "info", "error | warning | info | debug",
      "Least severe level of the records that go to the log hook or the log queue.", "DSGD_LOG_LEVEL"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"log_to", "choice", "none", "none | stderr",
      "Whether records go to standard error, too, if the host has set no log hook.", "DSGD_LOG_TO"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"loss_scale", "integer", "off", "off | dynamic | 1..1000000000000",
      "Factor that the host's loss is multiplied by, so that small gradients of half types do not become "
      "0: their mean is divided by it, and a step whose mean gradient is not finite changes nothing; "
      "dynamic: half of it after such a step, twice after 2000 others, from 65536 on; costs the overlap of "
      "update and communication.",
      "DSGD_LOSS_SCALE"},
     Type::kIntegerOrWord,
     1,
     1'000'000'000'000,
     false,
     false},
    {{"min_workers", "integer", "", "1..65536",
      "Number of workers with which the job goes on after a loss; empty: num_workers, so that a loss is an "
      "error (nothing less is supported yet).",
      "DSGD_MIN_WORKERS"},
     Type::kInteger,
     1,
     65536,
     false,
     true},
    {{"nccl_library", "string", "", "PATH",
      "Path of NCCL's shared library, for where the dynamic loader does not find it; one that the process "
      "has loaded already comes before it.",
      "DSGD_NCCL_LIBRARY"},
     Type::kText,
     0,
     4095,
     false,
     true},
    {{"num_workers", "integer", "1", "1..65536",
      "Number of workers of the job; joining is complete when all have come.", "DSGD_NUM_WORKERS"},
     Type::kInteger,
     1,
     65536,
     false,
     false},
    {{"ports", "string", "", "PORT | FIRST-LAST",
      "Ports on which workers accept their peers, for sites with a firewall, of which each worker takes "
      "the first free one; empty: any; the head has the port of `head`.",
      "DSGD_PORTS"},
     Type::kPorts,
     0,
     0,
     false,
     true},
    {{"rank", "integer", "-1", "-1..65535",
      "Rank that this worker asks for, less than num_workers; -1: the head gives the free ranks in the "
      "order of the worker ids.",
      "DSGD_RANK"},
     Type::kInteger,
     -1,
     65535,
     false,
     false},
    {{"receive_memory", "size", "256M", "1M..1T",
      "Most bytes of received data that wait in pooled buffers; senders are held back before it is exceeded.",
      "DSGD_RECEIVE_MEMORY"},
     Type::kSize,
     kMiB,
     kTiB,
     false,
     false},
    {{"reproducible", "switch", "0", "0 | 1",
      "Whether gradients are summed so that the bits do not depend on the strategy, the algorithm or the "
      "split of replicas over workers, for 5 bytes per float32 element instead of 4 (9 in jobs of more "
      "than 8 replicas; float64: 12).",
      "DSGD_REPRODUCIBLE"},
     Type::kSwitch,
     0,
     1,
     false,
     false},
    {{"servers", "integer", "0", "0..65536",
      "Number of workers, from rank 0 on, that hold a server shard in the ps strategy; 0: all.",
      "DSGD_SERVERS"},
     Type::kInteger,
     0,
     65536,
     false,
     false},
    {{"spin", "duration", "", "0..1s",
      "Time that a waiting thread spins before it sleeps: shorter latency for a busy core; 0: it sleeps at "
      "once; not set: 50us, or 200us, yielding to other threads meanwhile, if this node has more "
      "workers than processors.",
      "DSGD_SPIN"},
     Type::kDuration,
     0,
     kSecond,
     false,
     true},
    {{"stall_warning", "duration", "30s", "1s..24h",
      "Time after which a warning names the workers, gradients or objects that an unfinished step, "
      "collective or object call waits for; repeated at 3, 7, 15 times this time, and so on.",
      "DSGD_STALL_WARNING"},
     Type::kDuration,
     kSecond,
     24 * kHour,
     false,
     false},
    {{"step_timeout", "duration", "300s", "10ms..24h",
      "Time that a step or another collective call may take before it times out.", "DSGD_STEP_TIMEOUT"},
     Type::kDuration,
     10 * kMillisecond,
     24 * kHour,
     false,
     false},
    {{"strategy", "choice", "allreduce", "simple | ps | allreduce | mirrored | multi_worker_mirrored",
      "How gradients become new values, unless the program sets another strategy; the last two are other "
      "names of allreduce, and a host may register more.",
      "DSGD_STRATEGY"},
     Type::kChoice,
     0,
     0,
     false,
     false},
    {{"supervisor", "string", "", "@NAME",
      "Abstract Unix datagram socket to which the worker reports the progress of its join and the rank "
      "that a failure names; `dsgd run` sets it.",
      "DSGD_SUPERVISOR"},
     Type::kText,
     0,
     0,
     false,
     true},
    {{"token", "string", "", "up to 255 characters",
      "Random shared secret of the job, which both sides of every connection prove to know and never send; "
      "empty: the head listens on the loopback interface only, and so do workers, unless listen is set.",
      "DSGD_TOKEN"},
     Type::kText,
     0,
     0,
     false,
     true},
    {{"trace_spans", "integer", "16384", "0..16777216",
      "Number of spans that a session keeps for its trace, the latest ones (48 bytes each); 0: no trace.",
      "DSGD_TRACE_SPANS"},
     Type::kInteger,
     0,
     1 << 24,
     false,
     false},
    {{"worker_id", "string", "", "up to 255 characters",
      "Name of this worker, unique in the job, that gives it the same rank in every run; empty: made from "
      "host and process.",
      "DSGD_WORKER_ID"},
     Type::kText,
     0,
     0,
     false,
     true},
};

}  // namespace

const Rule* find_rule(std::string_view key) {
  for (const Rule& rule : kRules)
    if (key == rule.key.name) return &rule;
  return nullptr;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const Rule& rule : kRules) names.emplace_back(rule.key.name);
  return names;
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (const Rule& rule : kRules) names.emplace_back(rule.key.environment);
  return names;
}

}  // namespace config

std::span<const ConfigKey> config_keys() {
  static const auto keys = [] {
    std::array<ConfigKey, std::size(config::kRules)> rows;
    std::transform(std::begin(config::kRules), std::end(config::kRules), rows.begin(),
                   [](const config::Rule& rule) { return rule.key; });
    return rows;
  }();
  return keys;
}

}  // namespace dsgd

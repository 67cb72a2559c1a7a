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
     Type::kChoice},
    {{"algorithm", "choice", "auto", "auto | direct | halving_doubling | nccl | ring",
      "How the allreduce strategy moves bytes between workers: auto chooses by size and number of workers "
      "and lets NCCL reduce GPU gradients where possible; nccl is the same, but an error where not "
      "possible; a host may register more; equal on all workers.",
      "DSGD_ALGORITHM"},
     Type::kChoice},
    {{"bucket_size", "size", "", "4K..1G",
      "Largest number of bytes of parameters that are fused into one bucket for communication, at least "
      "those of 4096 elements; not set: 4M, 32M where NCCL reduces, 64M if the job is one worker with one "
      "GPU; equal on all workers; the memory of a step does not depend on it.",
      "DSGD_BUCKET_SIZE"},
     Type::kSize,
     4 * kKiB,
     kGiB},
    {{"checkpoint_dir", "string", "", "PATH",
      "Folder of the job's checkpoints, on a file system that all workers share; empty: none, unless a call "
      "names one.",
      "DSGD_CHECKPOINT_DIR"},
     Type::kText,
     0,
     4095},
    {{"checkpoint_interval", "integer", "0", "0..1000000000",
      "Number of steps after which dsgd saves a checkpoint by itself, beside the next steps; needs "
      "checkpoint_dir; 0: never; equal on all workers.",
      "DSGD_CHECKPOINT_INTERVAL"},
     Type::kInteger,
     0,
     1'000'000'000},
    {{"checkpoint_keep", "integer", "3", "0..1000000",
      "Number of checkpoints that stay in their folder: when one is saved, older ones are removed; 0: all.",
      "DSGD_CHECKPOINT_KEEP"},
     Type::kInteger,
     0,
     1'000'000},
    {{"checksum", "choice", "auto", "auto | always | never",
      "Which connections carry checksums (CRC32C), which detect changed bytes before they are used; auto: "
      "those that leave the machine without TLS; always: all; never: none, unless the other side asks for "
      "them; gradients that NCCL moves carry none.",
      "DSGD_CHECKSUM"},
     Type::kChoice},
    {{"copies", "integer", "1", "1..8",
      "Workers that keep the optimizer's state of each range under strategy ps: with r copies it outlives "
      "the "
      "loss of r-1 workers at once; at least 2 where the job is to go on after a loss and the optimizer has "
      "state.",
      "DSGD_COPIES"},
     Type::kInteger,
     1,
     8},
    {{"devices", "string", "cpu", "auto | DEVICE, DEVICE, ...",
      "Devices (cpu, or cuda:0 and so on) of the replicas that are added without naming one, in the order in "
      "which they are added; auto: every GPU that the process can use, or the cpu if there is none.",
      "DSGD_DEVICES"},
     Type::kDevices},
    {{"devices_per_worker", "integer", "0", "0..1024",
      "How many entries of `devices` each worker of a node takes, in the order of their local ranks; 0: "
      "all workers take all of them.",
      "DSGD_DEVICES_PER_WORKER"},
     Type::kInteger,
     0,
     1024},
    {{"early_update", "switch", "0", "0 | 1",
      "Whether GPUs update as soon as NCCL has reduced, without waiting for the host, where NCCL reduces "
      "among all workers, nothing needs the norm of the gradients, and nonfinite is off; with 1 no gradient "
      "may be absent, and after a step that fails values may differ between workers, so only a checkpoint "
      "is safe; equal on all workers.",
      "DSGD_EARLY_UPDATE"},
     Type::kSwitch},
    {{"embed_head", "choice", "auto", "auto | never",
      "Which process hosts the head; auto: a worker that can bind `head` (if `rank` is set, only rank 0); "
      "never: another process.",
      "DSGD_EMBED_HEAD"},
     Type::kChoice},
    {{"fingerprint", "string", "", "up to 4095 bytes",
      "Text of the host's choice that must be equal on all workers, such as the versions of its model code "
      "and libraries; starting fails where it differs and shows both.",
      "DSGD_FINGERPRINT"},
     Type::kText,
     0,
     4095},
    {{"gradient_norm", "switch", "0", "0 | 1",
      "Whether each step computes the L2 norm of the mean gradient; costs the overlap of update and "
      "communication; equal on all workers.",
      "DSGD_GRADIENT_NORM"},
     Type::kSwitch},
    {{"head", "string", "", "HOST:PORT | [IPV6]:PORT | unix:PATH | HOST:PORT,HOST:PORT,...",
      "Address of the head, or addresses of several heads of which one serves (head_state in etcd), equal on "
      "all workers; needed if num_workers is more than 1.",
      "DSGD_HEAD"},
     Type::kAddresses},
    {{"head_state", "string", "", "PATH | etcd://HOST:PORT,HOST:PORT,.../PREFIX | etcds://...",
      "Where `dsgd head` keeps the state of its job, so that another head with the same settings can go on "
      "after a failure, while the workers train on: a file, or keys in etcd, for several heads of which one "
      "serves (etcd:// is plain HTTP, etcds:// is TLS with tls_cert, tls_key and tls_ca); empty: the job "
      "ends if the head is lost.",
      "DSGD_HEAD_STATE"},
     Type::kText,
     0,
     4095},
    {{"head_timeout", "duration", "60s", "10ms..24h",
      "With head_state: time for which workers that have lost the head train on and dial it again, and for "
      "which a head that receives no heartbeat waits for the workers, before the job ends.",
      "DSGD_HEAD_TIMEOUT"},
     Type::kDuration,
     10 * kMillisecond,
     24 * kHour},
    {{"heartbeat_interval", "duration", "0", "0 or 10ms..30m",
      "Interval of heartbeats: a worker renews its lease every half of it; the job survives a network cut "
      "shorter than `lease` minus this time (or minus a twentieth of `lease`, if that is longer); at most "
      "half of `lease`; 0: a fifth of `lease`.",
      "DSGD_HEARTBEAT_INTERVAL"},
     Type::kDuration,
     10 * kMillisecond,
     kHour / 2},
    {{"init_timeout", "duration", "60s", "10ms..24h",
      "Time that joining a job may take: reaching the head and waiting until all workers have joined.",
      "DSGD_INIT_TIMEOUT"},
     Type::kDuration,
     10 * kMillisecond,
     24 * kHour},
    {{"interface", "string", "", "NAME | ADDRESS | ADDRESS/BITS",
      "Network interface for the traffic between workers, by name, own address or CIDR prefix; empty: the "
      "one that routes to the head.",
      "DSGD_INTERFACE"},
     Type::kText},
    {{"internode", "choice", "rpc", "rpc | nccl",
      "How gradients of GPUs go from node to node, once NCCL has reduced those of a node: through host "
      "memory and dsgd's connections (rpc), or by NCCL too, without checksums; equal on all workers.",
      "DSGD_INTERNODE"},
     Type::kChoice},
    {{"job", "string", "default", "1 to 255 bytes",
      "Name of the job; a head admits only workers that give the same name.", "DSGD_JOB"},
     Type::kText},
    {{"launcher", "choice", "auto", "auto | none",
      "Whether num_workers, rank, head and job, where nothing else gives them, come from the environment "
      "of torchrun, PyTorch (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open MPI, MPICH or Slurm (auto) "
      "or not (none).",
      "DSGD_LAUNCHER"},
     Type::kChoice},
    {{"launcher_port", "integer", "0", "0..65535",
      "Port of `head` where its host comes from a launcher's environment; 0: MASTER_PORT + 1 with torchrun "
      "and PyTorch, else a number from 20000 to 29999 that the launcher's name for the job decides.",
      "DSGD_LAUNCHER_PORT"},
     Type::kInteger,
     0,
     65535},
    {{"lease", "duration", "10s", "500ms..1h",
      "Time without a sign of life after which a worker counts as lost; equal on all workers and the head.",
      "DSGD_LEASE"},
     Type::kDuration,
     500 * kMillisecond,
     kHour},
    {{"listen", "string", "", "HOST:PORT | [IPV6]:PORT | unix:PATH",
      "Address on which this worker accepts its peers, port 0 for any; empty: the address that reaches the "
      "head, any port.",
      "DSGD_LISTEN"},
     Type::kAddress},
    {{"log_level", "choice", "info", "error | warning | info | debug",
      "Least severe level of the records that go to the log hook or the log queue.", "DSGD_LOG_LEVEL"},
     Type::kChoice},
    {{"log_to", "choice", "none", "none | stderr",
      "Whether records go to standard error, too, if the host has set no log hook.", "DSGD_LOG_TO"},
     Type::kChoice},
    {{"loss_scale", "integer", "off", "off | dynamic | 1..1000000000000",
      "Factor that the host's loss is multiplied by, so that small gradients of half types do not become "
      "0: their mean is divided by it, and a step whose mean gradient is not finite changes nothing; "
      "dynamic: begins at 65536, halves after such a step, doubles after 2000 others in a row; costs the "
      "overlap of update and communication; equal on all workers.",
      "DSGD_LOSS_SCALE"},
     Type::kIntegerOrWord,
     1,
     1'000'000'000'000},
    {{"max_workers", "integer", "", "1..65536",
      "Largest number of workers of the job, equal on the head and all workers; while it runs with fewer, "
      "others can join if max_workers is more than num_workers, min_workers is less, or rejoin_timeout is "
      "set; empty: num_workers.",
      "DSGD_MAX_WORKERS"},
     Type::kInteger,
     1,
     65536},
    {{"min_workers", "integer", "", "1..65536",
      "Least number of workers with which the job goes on after a loss, equal on the head and all workers; "
      "empty: num_workers, so that a loss is an error; the job always ends with a worker that hosts the "
      "head.",
      "DSGD_MIN_WORKERS"},
     Type::kInteger,
     1,
     65536},
    {{"nccl_library", "string", "", "PATH",
      "Path of NCCL's shared library, for where the dynamic loader does not find it; one that the process "
      "has loaded already comes before it.",
      "DSGD_NCCL_LIBRARY"},
     Type::kText,
     0,
     4095},
    {{"nonfinite", "choice", "off", "off | fail | skip | zero",
      "What a step does where a gradient has NaN or infinity, equal on all workers: it does not look (off); "
      "it fails on all workers before anything changes (fail); it ends on all workers without an update "
      "(skip); these elements count as 0 (zero); the error, or the log, names ranks and parameters; only "
      "loss_scale finds sums that overflow.",
      "DSGD_NONFINITE"},
     Type::kChoice},
    {{"num_workers", "integer", "1", "1..65536",
      "Number of workers of the job; joining is complete when all have joined.", "DSGD_NUM_WORKERS"},
     Type::kInteger,
     1,
     65536},
    {{"ports", "string", "", "PORT | FIRST-LAST",
      "Ports on which workers accept their peers, for sites with a firewall, of which each worker takes "
      "the first free one; empty: any; the head has the port of `head`.",
      "DSGD_PORTS"},
     Type::kPorts},
    {{"rank", "integer", "-1", "-1..65535",
      "Rank that this worker asks for when the job begins; -1: the head gives the free ranks in the order of "
      "the worker ids; a worker that joins a running job gets the last rank.",
      "DSGD_RANK"},
     Type::kInteger,
     -1,
     65535},
    {{"receive_memory", "size", "256M", "1M..1T",
      "Most bytes of received data that wait in pooled buffers; senders are held back before it is exceeded; "
      "give all workers the same, since it also decides the size of their chunks.",
      "DSGD_RECEIVE_MEMORY"},
     Type::kSize,
     kMiB,
     kTiB},
    {{"rejoin_timeout", "duration", "0", "0 or 10ms..24h",
      "Time that the job waits for others to join when fewer than min_workers are left, equal on the head "
      "and "
      "all workers; 0: it ends at once.",
      "DSGD_REJOIN_TIMEOUT"},
     Type::kDuration,
     10 * kMillisecond,
     24 * kHour},
    {{"reproducible", "switch", "0", "0 | 1",
      "Whether gradients are summed so that the bits do not depend on the strategy, the algorithm or the "
      "split of replicas over workers, for 5 bytes per float32 element instead of 4 (9 in jobs of more "
      "than 8 replicas; float64: 12); equal on all workers.",
      "DSGD_REPRODUCIBLE"},
     Type::kSwitch},
    {{"servers", "integer", "0", "0..65536",
      "Number of workers, from rank 0 on, that hold a server shard in the ps strategy; 0: all; equal on all "
      "workers.",
      "DSGD_SERVERS"},
     Type::kInteger,
     0,
     65536},
    {{"spin", "duration", "", "0..1s",
      "Time that a waiting thread spins before it sleeps: shorter latency for a busy core; 0: it sleeps at "
      "once; not set: 50us, or 200us, yielding to other threads meanwhile, if this node has more "
      "workers than processors.",
      "DSGD_SPIN"},
     Type::kDuration,
     0,
     kSecond},
    {{"stall_warning", "duration", "30s", "1s..24h",
      "Time after which a warning names the workers, gradients or objects that an unfinished step, "
      "collective or object call waits for; repeated at 3, 7, 15 times this time, and so on.",
      "DSGD_STALL_WARNING"},
     Type::kDuration,
     kSecond,
     24 * kHour},
    {{"step_timeout", "duration", "300s", "10ms..24h",
      "Time that a step or another collective call may take before it times out.", "DSGD_STEP_TIMEOUT"},
     Type::kDuration,
     10 * kMillisecond,
     24 * kHour},
    {{"straggler_timeout", "duration", "0", "0 or 500ms..24h",
      "Time after which the head evicts a worker if all others wait for it and it waits for none, so that "
      "the others go on without it; at least `lease`, and less than `step_timeout`; needs min_workers less "
      "than num_workers, "
      "max_workers more, or rejoin_timeout, and is equal on the head and all workers; 0: off.",
      "DSGD_STRAGGLER_TIMEOUT"},
     Type::kDuration,
     500 * kMillisecond,
     24 * kHour},
    {{"strategy", "choice", "allreduce", "simple | ps | allreduce | mirrored | multi_worker_mirrored",
      "How gradients become new values, unless the program sets another strategy; the last two are other "
      "names of allreduce, and a host may register more.",
      "DSGD_STRATEGY"},
     Type::kChoice},
    {{"supervisor", "string", "", "@NAME",
      "Abstract Unix datagram socket to which the worker reports the progress of its join and the rank "
      "that a failure names; `dsgd run` sets it.",
      "DSGD_SUPERVISOR"},
     Type::kText},
    {{"tls_ca", "string", "", "up to 4095 bytes",
      "Path of a PEM file with the certificates of the CAs of the job: one of them must have signed each "
      "certificate of the job, whose name is not checked; set with tls_cert and tls_key, it puts mutual TLS "
      "on every connection of the "
      "process, except to etcd, which needs etcds:// in head_state; all processes of a job need TLS, or "
      "none.",
      "DSGD_TLS_CA"},
     Type::kText,
     0,
     4095},
    {{"tls_cert", "string", "", "up to 4095 bytes",
      "Path of a PEM file with the certificate of this process for TLS, followed by intermediate ones, if "
      "any; a file that changes counts for the connections that are made afterwards.",
      "DSGD_TLS_CERT"},
     Type::kText,
     0,
     4095},
    {{"tls_key", "string", "", "up to 4095 bytes",
      "Path of a PEM file with the private key of tls_cert, without a passphrase.", "DSGD_TLS_KEY"},
     Type::kText,
     0,
     4095},
    {{"token", "string", "", "up to 255 bytes",
      "Random secret of the job; both sides of a connection prove that they know it; it is never sent; "
      "empty: without TLS the head listens on the loopback interface only, and so do workers, unless listen "
      "is set.",
      "DSGD_TOKEN"},
     Type::kText},
    {{"trace_spans", "integer", "16384", "0..16777216",
      "Number of spans that a session keeps for its trace, the latest ones (48 bytes each); 0: no trace.",
      "DSGD_TRACE_SPANS"},
     Type::kInteger,
     0,
     1 << 24},
    {{"wire", "choice", "fp32", "fp32 | fp16 | bf16",
      "Type in which gradients of float32 and half parameters travel between workers in a step: fp16 "
      "(float16, which needs loss_scale) and bf16 (bfloat16) halve the bytes; sums are made in float32, and "
      "rounding errors are added to the gradients of the next step; takes 10 more bytes of memory per "
      "element; NCCL keeps float32; equal on all workers.",
      "DSGD_WIRE"},
     Type::kChoice},
    {{"worker_id", "string", "", "up to 255 bytes",
      "Name of this worker, unique in the job, that gives it the same rank in every run; empty: made from "
      "host and process.",
      "DSGD_WORKER_ID"},
     Type::kText},
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

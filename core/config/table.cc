#include "core/config/table.h"

#include <array>
#include <cstddef>
#include <iterator>

namespace dsgd {
namespace config {
namespace {

// Alphabetical. The texts are what `dsgd config` and the documentation print.
constexpr struct {
  const char* name;
  Type type;
  const char *default_value, *range, *help;
} kRows[] = {
    {"absent", Type::kChoice, "skip", "skip | zero",
     "How an absent gradient counts if another replica has one. skip: the mean leaves out the replica's "
     "weight. zero: it counts as zero with its weight, as in PyTorch's DistributedDataParallel. Equal on "
     "all workers."},
    {"algorithm", Type::kChoice, "auto", "auto | direct | halving_doubling | nccl | ring",
     "How the allreduce strategy moves bytes between workers. auto: chosen by size and number of workers; "
     "NCCL reduces GPU gradients where possible. nccl: the same, but an error where NCCL is not possible. "
     "A host may register more. Equal on all workers."},
    {"bucket_size", Type::kSize, "", "4K..1G",
     "Largest number of bytes of parameters that are fused into one bucket for communication. At least the "
     "bytes of 4096 elements. Not set: 4M; 32M where NCCL reduces; 64M if the job is one worker with one "
     "GPU. The memory of a step does not depend on it. Equal on all workers."},
    {"checkpoint_dir", Type::kLongText, "", "PATH",
     "Folder of the job's checkpoints, on a file system that all workers share. Empty: none, unless a call "
     "names one."},
    {"checkpoint_interval", Type::kInteger, "0", "0..1000000000",
     "Number of steps after which dsgd saves a checkpoint by itself, beside the next steps. Needs "
     "checkpoint_dir. 0: never. Equal on all workers."},
    {"checkpoint_keep", Type::kInteger, "3", "0..1000000",
     "Number of checkpoints that stay in their folder. When one is saved, older ones are removed. 0: all "
     "stay."},
    {"checksum", Type::kChoice, "auto", "auto | always | never",
     "Which connections carry checksums (CRC32C), which detect changed bytes before they are used. auto: "
     "those that leave the machine without TLS. always: all. never: none, unless the other side asks for "
     "them. Gradients that NCCL moves carry none."},
    {"copies", Type::kInteger, "1", "1..8",
     "Number of workers that keep the optimizer's state of each range under strategy ps. With r copies the "
     "state outlives the loss of r-1 workers at once. Use at least 2 if the job is to go on after a loss "
     "and the optimizer has state."},
    {"devices", Type::kDevices, "cpu", "auto | DEVICE, DEVICE, ...",
     "Devices (cpu, or cuda:0 and so on) of the replicas that are added without naming one, in the order "
     "in which they are added. auto: every GPU that the process can use, or the cpu if there is none."},
    {"devices_per_worker", Type::kInteger, "0", "0..1024",
     "How many entries of `devices` each worker of a node takes, in the order of their local ranks. 0: all "
     "workers take all of them."},
    {"early_update", Type::kSwitch, "0", "0 | 1",
     "Whether GPUs update as soon as NCCL has reduced, without waiting for the host. It applies if NCCL "
     "reduces among all workers, nothing needs the norm of the gradients, and nonfinite is off. With 1 no "
     "gradient may be absent. After a step that fails, values may differ between workers, and only a "
     "checkpoint is safe. Equal on all workers."},
    {"embed_head", Type::kChoice, "auto", "auto | never",
     "Which process hosts the head. auto: a worker that can bind `head` (if `rank` is set, only rank 0). "
     "never: another process."},
    {"fingerprint", Type::kLongText, "", "up to 4095 bytes",
     "Text of the host's choice that must be equal on all workers, such as the versions of its model code "
     "and libraries. If it differs, starting fails and shows both texts."},
    {"gradient_norm", Type::kSwitch, "0", "0 | 1",
     "Whether each step computes the L2 norm of the mean gradient. Update and communication then do not "
     "overlap. Equal on all workers."},
    {"head", Type::kAddresses, "", "HOST:PORT | [IPV6]:PORT | unix:PATH | HOST:PORT,HOST:PORT,...",
     "Address of the head, or addresses of several heads of which one serves (head_state in etcd). Needed "
     "if num_workers is more than 1. Equal on all workers."},
    {"head_state", Type::kLongText, "", "PATH | etcd://HOST:PORT,HOST:PORT,.../PREFIX | etcds://...",
     "Where `dsgd head` keeps the state of its job: a file, or keys in etcd for several heads of which one "
     "serves. Another head with the same settings can then continue the job, while the workers train on. "
     "etcd:// is plain HTTP; etcds:// is TLS with tls_cert, tls_key and tls_ca. Empty: the job ends if the "
     "head is lost."},
    {"head_timeout", Type::kDuration, "60s", "10ms..24h",
     "With head_state: time for which workers that have lost the head train on and dial it again. A head "
     "that receives no heartbeat waits for the workers as long. Then the job ends."},
    {"heartbeat_interval", Type::kDuration, "0", "0 or 10ms..30m",
     "Interval of heartbeats. A worker renews its lease twice per interval. At most half of `lease`. A "
     "network cut shorter than `lease` minus this interval (or minus a twentieth of `lease`, if that is "
     "longer) does not end the job. 0: a fifth of `lease`."},
    {"init_timeout", Type::kDuration, "60s", "10ms..24h",
     "Time that joining a job may take: reaching the head and waiting until all workers have joined."},
    {"interface", Type::kText, "", "NAME | ADDRESS | ADDRESS/BITS",
     "Network interface for the traffic between workers, by name, own address or CIDR prefix. Empty: the "
     "one that routes to the head."},
    {"internode", Type::kChoice, "rpc", "rpc | nccl",
     "How gradients of GPUs go from node to node, once NCCL has reduced those of a node. rpc: through host "
     "memory and dsgd's connections. nccl: by NCCL too, without checksums. Equal on all workers."},
    {"job", Type::kText, "default", "1 to 255 bytes",
     "Name of the job. A head admits only workers that give the same name."},
    {"launcher", Type::kChoice, "auto", "auto | none",
     "Whether num_workers, rank, head and job, where nothing else gives them, come from the environment of "
     "torchrun, PyTorch (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open MPI, MPICH or Slurm. auto: they "
     "do. none: they do not."},
    {"launcher_port", Type::kInteger, "0", "0..65535",
     "Port of `head` where its host comes from a launcher's environment. 0: MASTER_PORT + 1 with torchrun "
     "and PyTorch, else a number from 20000 to 29999 that depends on the launcher's name for the job."},
    {"lease", Type::kDuration, "10s", "500ms..1h",
     "Time without a sign of life after which a worker counts as lost. Equal on the head and all workers."},
    {"listen", Type::kAddress, "", "HOST:PORT | [IPV6]:PORT | unix:PATH",
     "Address on which this worker accepts its peers. Port 0: any. Empty: the address that reaches the "
     "head, any port."},
    {"log_level", Type::kChoice, "info", "error | warning | info | debug",
     "Least severe level of the records that go to the log hook or the log queue."},
    {"log_to", Type::kChoice, "none", "none | stderr",
     "Whether records go to standard error, too, if the host has set no log hook."},
    {"loss_scale", Type::kIntegerOrWord, "off", "off | dynamic | 1..1000000000000",
     "Factor by which the host multiplies its loss, so that small gradients of half types do not become 0. "
     "Their mean is divided by it. A step whose mean gradient is not finite changes nothing. dynamic: "
     "begins at 65536, halves after such a step, and doubles after 2000 others in a row. Unless it is off, "
     "update and communication do not overlap. Equal on all workers."},
    {"max_workers", Type::kInteger, "", "1..65536",
     "Largest number of workers of the job. While it runs with fewer, others can join if max_workers is "
     "more than num_workers, min_workers is less, or rejoin_timeout is set. Empty: num_workers. Equal on "
     "the head and all workers."},
    {"min_workers", Type::kInteger, "", "1..65536",
     "Least number of workers with which the job goes on after a loss. Empty: num_workers, so that a loss "
     "is an error. The job always ends with a worker that hosts the head. Equal on the head and all "
     "workers."},
    {"nccl_library", Type::kLongText, "", "PATH",
     "Path of NCCL's shared library, for where the dynamic loader does not find it. An NCCL that the "
     "process has already loaded comes before it. All workers need the same version. Read when NCCL is first "
     "used."},
    {"nonfinite", Type::kChoice, "off", "off | fail | skip | zero",
     "Action when a gradient has NaN or infinity. off: no check. fail: the step fails on all workers and "
     "changes nothing. skip: the step ends on all workers without an update. zero: these elements count as "
     "0. The error, or the log, names ranks and parameters. Use loss_scale to find sums that overflow. "
     "Equal on all workers."},
    {"num_workers", Type::kInteger, "1", "1..65536",
     "Number of workers of the job. Joining is complete when all have joined."},
    {"ports", Type::kPorts, "", "PORT | FIRST-LAST",
     "Ports on which workers accept their peers, for sites with a firewall. Each worker takes the first "
     "free one. Empty: any. The head has the port of `head`."},
    {"rank", Type::kInteger, "-1", "-1..65535",
     "Rank that this worker asks for when the job begins. -1: the head gives the free ranks in the order "
     "of the worker ids. A worker that joins a running job gets the last rank."},
    {"receive_memory", Type::kSize, "256M", "1M..1T",
     "Most bytes of received data that wait in pooled buffers. Senders are held back before it is "
     "exceeded. Give all workers the same, since it also decides the size of their chunks."},
    {"rejoin_timeout", Type::kDuration, "0", "0 or 10ms..24h",
     "Time that the job waits for others to join when fewer than min_workers are left. 0: it ends at once. "
     "Equal on the head and all workers."},
    {"reproducible", Type::kSwitch, "0", "0 | 1",
     "Whether gradients are summed so that the bits do not depend on the strategy, the algorithm or the "
     "split of replicas over workers. A float32 element then takes 5 bytes on the wire instead of 4 (9 in "
     "jobs of more than 8 replicas), a float64 element 12 instead of 8. Equal on all workers."},
    {"servers", Type::kInteger, "0", "0..65536",
     "Number of workers, from rank 0 on, that hold a server shard in the ps strategy. 0: all. Equal on all "
     "workers."},
    {"spin", Type::kDuration, "", "0..1s",
     "Time that a waiting thread spins before it sleeps. Spinning shortens the latency and keeps a core "
     "busy. 0: it sleeps at once. Not set: 50us; if this node has more workers than processors, 200us, in "
     "which it yields to other threads."},
    {"stall_warning", Type::kDuration, "30s", "1s..24h",
     "Time after which a warning names the workers, gradients or objects that an unfinished step, "
     "collective or object call waits for. It is repeated at 3, 7, 15 times this time, and so on."},
    {"step_timeout", Type::kDuration, "300s", "10ms..24h",
     "Time that a step or another collective call may take before it times out."},
    {"straggler_timeout", Type::kDuration, "0", "0 or 500ms..24h",
     "Time after which the head evicts a worker that all others wait for and that waits for none. The "
     "others go on without it. At least `lease`; should be less than `step_timeout`. Needs min_workers less "
     "than num_workers, max_workers more, or rejoin_timeout. Equal on the head and all workers. 0: off."},
    {"strategy", Type::kChoice, "allreduce", "simple | ps | allreduce | mirrored | multi_worker_mirrored",
     "How gradients become new values, unless the program sets another strategy. The last two are other "
     "names of allreduce. A host may register more."},
    {"supervisor", Type::kText, "", "@NAME",
     "Abstract Unix datagram socket to which the worker reports the progress of its join and the rank that "
     "a failure names. `dsgd run` sets it."},
    {"tls_ca", Type::kLongText, "", "up to 4095 bytes",
     "Path of a PEM file with the certificates of the CAs of the job. One of them must have signed each "
     "certificate of the job; names are not checked. Set with tls_cert and tls_key, it puts mutual TLS on "
     "every connection of the process, except to etcd, which needs etcds:// in head_state. Use TLS on all "
     "processes of a job, or on none."},
    {"tls_cert", Type::kLongText, "", "up to 4095 bytes",
     "Path of a PEM file with the certificate of this process for TLS, followed by intermediate ones, if "
     "any. Later connections use a changed file."},
    {"tls_key", Type::kLongText, "", "up to 4095 bytes",
     "Path of a PEM file with the private key of tls_cert, without a passphrase."},
    {"token", Type::kText, "", "up to 255 bytes",
     "Random secret of the job. Both sides of a connection prove that they know it. It is never sent. "
     "Empty: without TLS the head listens on the loopback interface only, and so do workers, unless listen "
     "is set."},
    {"trace_spans", Type::kInteger, "16384", "0..16777216",
     "Number of spans that a session keeps for its trace, the latest ones (48 bytes each). 0: no trace."},
    {"wire", Type::kChoice, "fp32", "fp32 | fp16 | bf16",
     "Type in which gradients of float32 and half parameters travel between workers in a step. fp16 "
     "(float16, which needs loss_scale) and bf16 (bfloat16) halve the bytes. Sums are made in float32, and "
     "rounding errors are added to the gradients of the next step. Halves take 10 more bytes of memory per "
     "element. NCCL keeps float32. Equal on all workers."},
    {"worker_id", Type::kText, "", "up to 255 bytes",
     "Name of this worker, unique in the job, that gives it the same rank in every run. Empty: made from "
     "host and process."},
};

constexpr const char* word_of(Type type) {
  switch (type) {
    case Type::kInteger:
    case Type::kIntegerOrWord:
      return "integer";
    case Type::kDuration:
      return "duration";
    case Type::kSize:
      return "size";
    case Type::kSwitch:
      return "switch";
    case Type::kChoice:
      return "choice";
    default:
      return "string";
  }
}

// "DSGD_" and the name in capital letters.
constexpr auto kVariables = [] {
  std::array<std::array<char, 32>, std::size(kRows)> variables{};
  for (size_t row = 0; row < variables.size(); ++row) {
    char* end = variables[row].data();
    for (const char* c = "DSGD_"; *c; ++c) *end++ = *c;
    for (const char* c = kRows[row].name; *c; ++c)
      *end++ = *c == '_' ? '_' : static_cast<char>(*c - 'a' + 'A');
  }
  return variables;
}();

constexpr auto kKeys = [] {
  std::array<ConfigKey, std::size(kRows)> keys{};
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto& [name, type, default_value, range, help] = kRows[i];
    keys[i] = {name, word_of(type), default_value, range, help, kVariables[i].data(), type};
  }
  return keys;
}();

}  // namespace

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : kKeys)
    if (name == key.name) return &key;
  return nullptr;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const ConfigKey& key : kKeys) names.emplace_back(key.name);
  return names;
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (const ConfigKey& key : kKeys) names.emplace_back(key.environment);
  return names;
}

}  // namespace config

std::span<const ConfigKey> config_keys() { return config::kKeys; }

}  // namespace dsgd

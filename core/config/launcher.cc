#include "core/config/launcher.h"

#include <algorithm>

#include "core/base/integer.h"

namespace dsgd::config {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

bool has(const Variables& variables, std::string_view name) { return variables.contains(name); }

std::string text(const Variables& variables, std::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// "RANK=3"
std::string evidence(std::string_view name, const Variables& variables) {
  return std::string(name) + "=" + text(variables, name);
}

std::optional<int64_t> number(const Variables& variables, std::string_view name) {
  return parse_integer(text(variables, name));
}

// Returns a port in 20000..29999, below Linux's range for outgoing connections, from the FNV-1a hash of the
// job name.
int64_t derived_port(std::string_view job) {
  constexpr uint32_t kFirst = 20000, kCount = 10000;
  uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return kFirst + hash % kCount;
}

// HOST:PORT
bool is_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const int64_t port = parse_integer(text.substr(colon + 1)).value_or(0);
  return 1 <= port && port <= 65535;
}

// The head's address next to PyTorch's own store, which listens on MASTER_PORT.
void read_master(const Variables& variables, Launch* launch) {
  launch->host = text(variables, "MASTER_ADDR");
  if (launch->host.empty()) launch->no_host = "MASTER_ADDR is not set: set MASTER_ADDR to the host of rank 0";
  const std::string written = text(variables, "MASTER_PORT");
  const int64_t port = number(variables, "MASTER_PORT").value_or(0);
  if (1 <= port && port <= 65535)
    launch->port = port < 65535 ? port + 1 : port - 1;
  else
    launch->no_port =
        (written.empty() ? "MASTER_PORT is not set" : "MASTER_PORT='" + written + "' is not a port") +
        ": set MASTER_PORT to a port of that host, from 1 to 65535";
}

void read_torchrun(const Variables& variables, const std::string&, Launch* launch) {
  read_master(variables, launch);
  launch->job = text(variables, "TORCHELASTIC_RUN_ID") + "." + text(variables, "TORCHELASTIC_RESTART_COUNT");
}

// This environment has no name for the job. MASTER_ADDR cannot be part of one: some launchers give rank 0
// another name for its own host.
void read_pytorch(const Variables& variables, const std::string&, Launch* launch) {
  read_master(variables, launch);
  launch->job = "pytorch." + text(variables, "MASTER_PORT");
}

// Its environment names the host of mpirun, which need not be the host of rank 0.
void read_open_mpi(const Variables& variables, const std::string&, Launch* launch) {
  launch->job = "openmpi." + text(variables, "PMIX_NAMESPACE");
  launch->port = derived_port(launch->job);
}

// SLURM_LAUNCH_NODE_IPADDR is the host of srun, not of rank 0.
void read_slurm(const Variables& variables, const std::string&, Launch* launch) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (launch->host.empty()) launch->host = first_slurm_host(text(variables, name));
  launch->job = "slurm." + text(variables, "SLURM_JOB_ID") + "." + text(variables, "SLURM_STEP_ID") + "." +
                text(variables, "SLURM_RESTART_COUNT");
  launch->port = derived_port(launch->job);
}

// Its environment has no name for the job, so the pid or the address of Hydra's proxy names it. All processes
// of a host have the same proxy.
void read_mpich(const Variables& variables, const std::string& launcher_process, Launch* launch) {
  const std::string proxy = has(variables, "PMI_FD") ? launcher_process : text(variables, "PMI_PORT");
  launch->job = "mpich." + proxy;
  if (has(variables, "PMI_FD") || is_address(proxy))
    launch->port = derived_port(launch->job);
  else
    launch->no_port = "PMI_PORT='" + proxy + "' is not HOST:PORT: start the workers with mpirun";
}

// A launcher that dsgd understands. A launcher sets all of `needed` for each process that it starts.
struct Known {
  const char* name;
  const char* needed[3];  // null: no further one
  const char *rank, *size;
  const char *on_host, *hosts;  // number of processes on this host, number of hosts; one of them may be null
  void (*read)(const Variables&, const std::string& launcher_process, Launch*);
};

// The innermost comes first: a process inherits the variables of the outer ones. "PyTorch" is the environment
// of env://, PyTorch's initialization method, as Kubeflow's PyTorchJob and scripts set it.
constexpr Known kKnown[] = {
    {"torchrun",
     {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"},
     "RANK",
     "WORLD_SIZE",
     "LOCAL_WORLD_SIZE",
     nullptr,
     read_torchrun},
    {"PyTorch", {"RANK", "WORLD_SIZE"}, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", nullptr, read_pytorch},
    {"Open MPI",
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"},
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     read_open_mpi},
    {"MPICH",
     {"PMI_RANK", "PMI_SIZE", "PMI_FD"},
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALNRANKS",
     nullptr,
     read_mpich},
    // With -pmi-port the processes get the proxy's address instead of a descriptor.
    {"MPICH",
     {"PMI_RANK", "PMI_SIZE", "PMI_PORT"},
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALNRANKS",
     nullptr,
     read_mpich},
    // A batch script has SLURM_PROCID, too; only a step that srun starts has SLURM_STEP_ID.
    {"Slurm",
     {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_JOB_ID"},
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     nullptr,
     "SLURM_STEP_NUM_NODES",
     read_slurm},
};

// The meaning of a variable of a launcher that dsgd does not understand.
enum class Meaning {
  kSize,        // number of processes or pods
  kAllocation,  // number of processes that may be started; a script that runs once has it, too
  kRank,        // rank of this process; 0: it may be the only one
  kPod          // index of this pod; 0: most likely it is the only one
};

struct Unknown {
  const char *name, *variable;
  Meaning meaning;
  const char* unless = nullptr;  // another variable that tells more
};

constexpr Unknown kUnknown[] = {
    {"horovodrun", "HOROVOD_SIZE", Meaning::kSize},
    {"Open MPI", "OMPI_COMM_WORLD_SIZE", Meaning::kSize},
    {"MVAPICH2", "MV2_COMM_WORLD_SIZE", Meaning::kSize},
    {"Flux", "FLUX_JOB_SIZE", Meaning::kSize},
    {"jsrun", "JSM_NAMESPACE_SIZE", Meaning::kSize},
    {"PALS", "PALS_RANKID", Meaning::kRank},
    {"PMI", "PMI_SIZE", Meaning::kSize},
    {"PMIx", "PMIX_RANK", Meaning::kRank},
    {"Slurm", "SLURM_NTASKS", Meaning::kAllocation, "SLURM_STEP_ID"},  // a step has a number of its own
    {"JAX", "JAX_NUM_PROCESSES", Meaning::kSize},
    {"DMLC", "DMLC_NUM_WORKER", Meaning::kSize},
    {"LeaderWorkerSet", "LWS_GROUP_SIZE", Meaning::kSize},
    {"Kubeflow", "PET_NNODES", Meaning::kSize},
    {"PyTorch", "WORLD_SIZE", Meaning::kSize},
    {"Kubernetes", "JOB_COMPLETION_INDEX", Meaning::kPod},
};

bool is_size(Meaning meaning) { return meaning == Meaning::kSize || meaning == Meaning::kAllocation; }

// Returns whether the variable shows that there are several processes.
bool shows_several(const Unknown& unknown, const Variables& variables) {
  if (unknown.unless && has(variables, unknown.unless)) return false;
  return number(variables, unknown.variable).value_or(0) >= (is_size(unknown.meaning) ? 2 : 1);
}

// Returns whether any launcher, known or not, tells how many processes there are.
bool size_is_told(const Variables& variables) {
  const auto is_number = [&](const char* variable) { return number(variables, variable).has_value(); };
  return std::any_of(std::begin(kKnown), std::end(kKnown),
                     [&](const Known& known) { return is_number(known.size); }) ||
         std::any_of(std::begin(kUnknown), std::end(kUnknown), [&](const Unknown& unknown) {
           return is_size(unknown.meaning) && is_number(unknown.variable);
         });
}

bool started_by(const Known& known, const Variables& variables) {
  // These names are common.
  if (known.read == read_pytorch && text(variables, known.size).empty()) return false;
  // `srun --mpi=pmi2` sets MPICH's variables, too, and they agree with its own. They differ where MPICH's
  // mpirun runs in an allocation: it starts one proxy for each host by srun, and its processes inherit that
  // step.
  if (known.read == read_mpich && text(variables, known.size) == text(variables, "SLURM_STEP_NUM_TASKS"))
    return false;
  return std::all_of(std::begin(known.needed), std::end(known.needed),
                     [&](const char* name) { return !name || has(variables, name); });
}

// Returns whether all workers are on this host, so that the loopback address suffices.
bool on_one_host(const Known& known, const Variables& variables, int64_t size) {
  return known.on_host ? number(variables, known.on_host) == size : number(variables, known.hosts) == 1;
}

}  // namespace

std::string first_slurm_host(std::string_view nodes) {
  std::string host;
  for (size_t i = 0; i < nodes.size() && nodes[i] != ','; ++i) {
    if (nodes[i] != '[') {
      host += nodes[i];
      continue;
    }
    const size_t end = std::min(nodes.find(']', i), nodes.size());
    const std::string_view numbers = nodes.substr(i + 1, end - i - 1);
    host += numbers.substr(0, numbers.find_first_of(",-"));
    i = end;
  }
  return host;
}

Result<std::optional<Launch>> find_launch(const Variables& variables, const std::string& launcher_process) {
  for (const Known& known : kKnown) {
    if (!started_by(known, variables)) continue;
    const auto count = [&](const char* variable) -> Result<int64_t> {
      const auto value = number(variables, variable);
      if (value && *value >= 0) return *value;
      return Status(Code::kInvalidArgument,
                    "environment variable " + std::string(variable) + " of " + known.name +
                        (has(variables, variable)
                             ? ": '" + text(variables, variable) + "' is not a non-negative integer"
                             : " is not set") +
                        "; set launcher=none to ignore this launcher");
    };
    const auto size = count(known.size);
    if (!size.ok()) return size.status();
    // A launcher may have started this process for another launcher. A rank that is too high is an error.
    if (size.value() <= 1 && number(variables, known.rank).value_or(0) < 1) continue;
    const auto rank = count(known.rank);
    if (!rank.ok()) return rank.status();
    Launch launch;
    launch.launcher = known.name;
    launch.rank_variable = known.rank;
    launch.size_variable = known.size;
    launch.rank = rank.value();
    launch.size = size.value();
    known.read(variables, launcher_process, &launch);
    if (on_one_host(known, variables, launch.size)) launch.host = kLoopback;
    if (launch.host.empty() && launch.no_host.empty() && known.on_host && !has(variables, known.on_host))
      launch.no_host = std::string(known.on_host) +
                       " is not set, and no variable names the host of rank 0: set " + known.on_host + "=" +
                       std::to_string(launch.size) + " if all run on one host";
    if (launch.host.find(':') != std::string::npos && launch.host[0] != '[')
      launch.host = "[" + launch.host + "]";
    return std::optional(std::move(launch));
  }
  return std::optional<Launch>();
}

std::optional<Starter> find_starter(const Variables& variables) {
  for (const Known& known : kKnown) {
    if (started_by(known, variables) && number(variables, known.size).value_or(0) >= 2)
      return Starter{known.name, evidence(known.size, variables), true};
  }
  for (const Unknown& unknown : kUnknown) {
    if (unknown.meaning != Meaning::kAllocation && shows_several(unknown, variables))
      return Starter{unknown.name, evidence(unknown.variable, variables), false};
  }
  return std::nullopt;
}

std::string unknown_launcher_warning(const Variables& variables) {
  const std::string remedy =
      "; set DSGD_HEAD, DSGD_NUM_WORKERS and DSGD_RANK, or launcher=none if that is intended";
  for (const Unknown& unknown : kUnknown) {
    if (shows_several(unknown, variables))
      return std::string(unknown.name) + " seems to have started several processes (" +
             evidence(unknown.variable, variables) +
             "), but its environment is not understood, so this worker trains alone" + remedy;
  }
  if (size_is_told(variables)) return "";
  for (const Unknown& unknown : kUnknown) {
    if (unknown.meaning == Meaning::kRank && number(variables, unknown.variable) == 0)
      return std::string(unknown.name) + " has started this process (" +
             evidence(unknown.variable, variables) +
             "), and no variable tells how many there are: if it has started others, each trains alone" +
             remedy;
  }
  return "";
}

}  // namespace dsgd::config

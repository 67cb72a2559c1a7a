// Environments as launchers gave them to the second process (third of four with Slurm), recorded with
// torchrun 2.15, Open MPI 4.1.4, MPICH 4.0.2, Slurm 22.05 and horovodrun 0.28.1. Variables that dsgd does not
// read are left out, unless they might mislead it.
#include "core/config/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/config.h"

namespace dsgd {
namespace {

using config::Variables;
using testing::AllOf;
using testing::HasSubstr;

const Variables kTorchrun = {{"GROUP_RANK", "0"},
                             {"GROUP_WORLD_SIZE", "1"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "39339"},
                             {"RANK", "1"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"TORCHELASTIC_RUN_ID", "ceef75a6-8d33-433c-a549-3762e6bbb34f"},
                             {"WORLD_SIZE", "2"}};

// The variables of env://, PyTorch's initialization method. Kubeflow's PyTorchJob sets these four for each
// pod.
const Variables kPyTorch = {
    {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}};

const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_UNIVERSE_SIZE", "2"},
    {"OMPI_MCA_orte_hnp_uri", "1760493568.0;tcp://192.0.2.2:33033;tcp6://[fd00::2]:33039"},
    {"PMIX_HOSTNAME", "vm"},
    {"PMIX_NAMESPACE", "1760493569"},
    {"PMIX_RANK", "1"}};

const Variables kMpich = {{"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "vm"},
                          {"MPI_LOCALNRANKS", "2"},
                          {"MPI_LOCALRANKID", "1"},
                          {"PMI_FD", "8"},
                          {"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"}};

// With mpirun's option -pmi-port.
const Variables kMpichPort = {{"MPI_LOCALNRANKS", "2"},
                              {"MPI_LOCALRANKID", "1"},
                              {"PMI_PORT", "vm:38011"},
                              {"PMI_RANK", "1"},
                              {"PMI_SIZE", "2"}};

const Variables kSlurm = {{"SLURM_GTIDS", "2,3"},
                          {"SLURM_JOB_ID", "1"},
                          {"SLURM_JOB_NODELIST", "n[1-2]"},
                          {"SLURM_JOB_NUM_NODES", "2"},
                          {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NNODES", "2"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_NODELIST", "n[1-2]"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NODELIST", "n[1-2]"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_TASKS_PER_NODE", "2(x2)"},
                          {"SLURM_SUBMIT_HOST", "vm"}};

const Variables kHorovodrun = {{"HOROVOD_RANK", "1"},
                               {"HOROVOD_SIZE", "2"},
                               {"HOROVOD_LOCAL_RANK", "1"},
                               {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1"},
                               {"HOROVOD_GLOO_RENDEZVOUS_PORT", "65002"}};

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

Config started(const Variables& variables, const std::string& process = "4711") {
  Config config;
  config.set_environment({variables.begin(), variables.end()}, process);
  return config;
}

struct Place {
  std::string num_workers, rank, head, job;
  bool operator==(const Place&) const = default;
};

Place place(const Config& config) {
  return {config.text("num_workers"), config.text("rank"), config.text("head"), config.text("job")};
}

void PrintTo(const Place& place, std::ostream* out) {
  *out << place.num_workers << " " << place.rank << " " << place.head << " " << place.job;
}

// The step in which MPICH's mpirun runs one proxy for each host.
const Variables kSlurmProxy = with(kSlurm, {{"SLURM_PROCID", "0"},
                                            {"SLURM_STEP_NODELIST", "n1"},
                                            {"SLURM_STEP_NUM_NODES", "1"},
                                            {"SLURM_STEP_NUM_TASKS", "1"}});

TEST(Launcher, GivesSizeRankHeadAndJob) {
  const std::string torch_job = "ceef75a6-8d33-433c-a549-3762e6bbb34f.0";
  const struct {
    const char* name;
    Variables variables;
    Place wanted;
  } cases[] = {
      {"torchrun", kTorchrun, {"2", "1", "127.0.0.1:39340", torch_job}},
      {"torchrun, two hosts",
       with(kTorchrun, {{"LOCAL_WORLD_SIZE", "1"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}}),
       {"2", "1", "node7:29501", torch_job}},
      {"torchrun, IPv6",
       with(kTorchrun, {{"LOCAL_WORLD_SIZE", "1"}, {"MASTER_ADDR", "fd00::7"}}),
       {"2", "1", "[fd00::7]:39340", torch_job}},
      {"torchrun, the last port",
       with(kTorchrun, {{"MASTER_PORT", "65535"}}),
       {"2", "1", "127.0.0.1:65534", torch_job}},
      {"torchrun, started again",
       with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}}),
       {"2", "1", "127.0.0.1:39340", "ceef75a6-8d33-433c-a549-3762e6bbb34f.3"}},
      {"PyTorch", kPyTorch, {"2", "1", "job-master-0:23457", "pytorch.23456"}},
      {"PyTorch, one host",
       with(kPyTorch, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}),
       {"2", "1", "127.0.0.1:23457", "pytorch.23456"}},
      {"PyTorch, IPv6",
       with(kPyTorch, {{"MASTER_ADDR", "fd00::7"}}),
       {"2", "1", "[fd00::7]:23457", "pytorch.23456"}},
      {"PyTorch, IPv6 in brackets",
       with(kPyTorch, {{"MASTER_ADDR", "[fd00::7]"}}),
       {"2", "1", "[fd00::7]:23457", "pytorch.23456"}},
      {"PyTorch, the last port",
       with(kPyTorch, {{"MASTER_PORT", "65535"}}),
       {"2", "1", "job-master-0:65534", "pytorch.65535"}},
      {"Open MPI", kOpenMpi, {"2", "1", "127.0.0.1:22170", "openmpi.1760493569"}},
      {"MPICH", kMpich, {"2", "1", "127.0.0.1:24567", "mpich.4711"}},
      {"MPICH, a port", kMpichPort, {"2", "1", "127.0.0.1:24567", "mpich.vm:38011"}},
      {"MPICH in a Slurm allocation", with(kSlurmProxy, kMpich), {"2", "1", "127.0.0.1:24567", "mpich.4711"}},
      {"Slurm", kSlurm, {"4", "3", "n1:24567", "slurm.1.0."}},
      {"Slurm, one host",
       with(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "n2"}}),
       {"4", "3", "127.0.0.1:24567", "slurm.1.0."}},
      {"Slurm, the step has another first host",
       with(kSlurm, {{"SLURM_STEP_NODELIST", "rack[007-009]-x[3,5],n1"}}),
       {"4", "3", "rack007-x3:24567", "slurm.1.0."}},
      {"Slurm, without the step's own list",
       without(kSlurm, "SLURM_STEP_NODELIST"),
       {"4", "3", "n1:24567", "slurm.1.0."}},
  };
  for (const auto& test : cases) {
    Config config = started(test.variables);
    const auto note = config.apply_launcher();
    ASSERT_TRUE(note.ok()) << test.name << ": " << note.status().message();
    Place found = place(config), wanted = test.wanted;
    // Derived ports: only their range is promised.
    if (const size_t at = wanted.head.find(":2");
        at != std::string::npos && wanted.head.substr(at) != ":29501" && wanted.head.substr(at) != ":23457") {
      const int64_t port = std::stoll(found.head.substr(found.head.rfind(':') + 1));
      EXPECT_TRUE(20000 <= port && port < 30000) << port;
      found.head.resize(found.head.rfind(':'));
      wanted.head.resize(at);
    }
    EXPECT_EQ(found, wanted) << test.name;
    EXPECT_TRUE(config.validate().ok()) << test.name;
    EXPECT_FALSE(note.value().warning);
    EXPECT_THAT(note.value().text, HasSubstr(": rank " + wanted.rank + " of " + wanted.num_workers +
                                             ", head " + config.text("head")))
        << test.name;
  }
}

TEST(Launcher, PortIsEqualWithinAJobAndDiffersBetweenJobs) {
  const auto head = [](const Variables& variables, const std::string& process) {
    Config config = started(variables, process);
    EXPECT_TRUE(config.apply_launcher().ok());
    return config.text("head");
  };
  EXPECT_EQ(head(kSlurm, "1"), head(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}}), "2"));
  EXPECT_NE(head(kSlurm, "1"), head(with(kSlurm, {{"SLURM_JOB_ID", "2"}}), "1"));
  EXPECT_NE(head(kSlurm, "1"), head(with(kSlurm, {{"SLURM_STEP_ID", "1"}}), "1"));
  EXPECT_NE(head(kMpich, "1"), head(kMpich, "2"));
  EXPECT_EQ(head(kMpichPort, ""), head(with(kMpichPort, {{"PMI_RANK", "0"}}), ""));
  EXPECT_NE(head(kMpichPort, ""), head(with(kMpichPort, {{"PMI_PORT", "vm:38012"}}), ""));
  EXPECT_NE(head(kOpenMpi, "1"), head(with(kOpenMpi, {{"PMIX_NAMESPACE", "1760493570"}}), "1"));
}

TEST(Launcher, InnermostCounts) {
  const struct {
    const char* name;
    Variables outer, inner;
  } cases[] = {{"torchrun: ", kSlurm, kTorchrun},
               {"torchrun: ", kPyTorch, kTorchrun},
               {"PyTorch: ", kSlurm, kPyTorch},
               {"Slurm: ", with(kPyTorch, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), kSlurm},
               {"Open MPI: ", kSlurm, kOpenMpi},
               {"MPICH: ", kSlurmProxy, kMpich},
               {"Slurm: ", kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "8"}}}};  // --mpi=pmi2
  for (const auto& test : cases) {
    const auto note = started(with(test.outer, test.inner)).apply_launcher();
    ASSERT_TRUE(note.ok());
    EXPECT_THAT(note.value().text, testing::StartsWith(test.name));
  }
}

TEST(Launcher, OneThatStartedASingleProcessHidesNoOther) {
  const Variables torchrun = with(kTorchrun, {{"WORLD_SIZE", "1"}, {"RANK", "0"}});
  const Variables mpich = with(kMpich, {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}});
  for (const auto& [name, variables] :
       {std::pair("Slurm: ", with(kSlurm, torchrun)), std::pair("Slurm: ", with(kSlurm, mpich)),
        std::pair("MPICH: ", with(kMpich, torchrun))}) {
    const auto note = started(variables).apply_launcher();
    ASSERT_TRUE(note.ok());
    EXPECT_THAT(note.value().text, testing::StartsWith(name));
    EXPECT_FALSE(note.value().warning);
  }
  for (const auto& [name, variables] : {std::pair("horovodrun", with(kSlurmProxy, kHorovodrun)),
                                        std::pair("PMI", with(kSlurmProxy, without(kMpich, "PMI_FD")))}) {
    const auto note = started(variables).apply_launcher();
    ASSERT_TRUE(note.ok());
    EXPECT_THAT(note.value().text, testing::StartsWith(name));
    EXPECT_TRUE(note.value().warning) << name;
  }
}

TEST(Launcher, ExplicitKeysWin) {
  const struct {
    const char* name;
    Variables keys;
    Place wanted;
  } cases[] = {
      {"all",
       {{"DSGD_HEAD", "h:1"}, {"DSGD_NUM_WORKERS", "8"}, {"DSGD_RANK", "5"}},
       {"8", "5", "h:1", "default"}},
      {"head: the job's name is the host's, too", {{"DSGD_HEAD", "h:1"}}, {"2", "1", "h:1", "default"}},
      {"an empty head is none",
       {{"DSGD_HEAD", ""}},
       {"2", "1", "127.0.0.1:39340", "ceef75a6-8d33-433c-a549-3762e6bbb34f.0"}},
      {"rank", {{"DSGD_RANK", "0"}}, {"2", "0", "127.0.0.1:39340", "ceef75a6-8d33-433c-a549-3762e6bbb34f.0"}},
      {"job", {{"DSGD_JOB", "mine"}}, {"2", "1", "127.0.0.1:39340", "mine"}},
      {"port", {{"DSGD_LAUNCHER_PORT", "7700"}, {"DSGD_JOB", "mine"}}, {"2", "1", "127.0.0.1:7700", "mine"}},
      {"another size: another job",
       {{"DSGD_NUM_WORKERS", "3"}, {"DSGD_HEAD", "h:1"}},
       {"3", "-1", "h:1", "default"}},
      {"one worker on purpose", {{"DSGD_NUM_WORKERS", "1"}}, {"1", "-1", "", "default"}},
      {"switched off", {{"DSGD_LAUNCHER", "none"}}, {"1", "-1", "", "default"}},
  };
  for (const auto& test : cases) {
    Config config = started(with(kTorchrun, test.keys));
    EXPECT_TRUE(config.apply_launcher().ok()) << test.name;
    EXPECT_EQ(place(config), test.wanted) << test.name;
  }
  Config own = started(with(kPyTorch, {{"DSGD_HEAD", "h:1"}, {"DSGD_NUM_WORKERS", "8"}, {"DSGD_RANK", "5"}}));
  EXPECT_EQ(own.apply_launcher().value().text, "");
  EXPECT_EQ(place(own), (Place{"8", "5", "h:1", "default"}));
  Config config = started(kTorchrun);
  ASSERT_TRUE(config.set("num_workers", "1").ok());
  EXPECT_EQ(config.apply_launcher().value().text, "");
  EXPECT_EQ(config.text("num_workers"), "1");
}

TEST(Launcher, OneProcessNeedsNoNote) {
  for (const auto& variables : {with(kTorchrun, {{"WORLD_SIZE", "1"}, {"RANK", "0"}}),
                                with(kPyTorch, {{"WORLD_SIZE", "1"}, {"RANK", "0"}}),
                                without(kPyTorch, "WORLD_SIZE"), with(kPyTorch, {{"WORLD_SIZE", ""}}),
                                with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}),
                                with(kHorovodrun, {{"HOROVOD_SIZE", "1"}}), Variables{},
                                Variables{{"HOME", "/root"}, {"PET_NNODES", "1:4"}}}) {
    Config config = started(variables);
    const auto note = config.apply_launcher();
    ASSERT_TRUE(note.ok());
    EXPECT_EQ(note.value().text, "");
    EXPECT_EQ(place(config), (Place{"1", "-1", "", "default"}));
  }
}

TEST(Launcher, UnknownHeadIsAnError) {
  for (const auto& [name, variables] :
       {std::pair("Open MPI", with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})),
        std::pair("MPICH", with(kMpich, {{"MPI_LOCALNRANKS", "1"}})),
        std::pair("MPICH", with(kMpichPort, {{"MPI_LOCALNRANKS", "1"}})),
        std::pair("MPICH", with(kSlurmProxy, with(kMpich, {{"MPI_LOCALNRANKS", "1"}})))}) {
    const auto note = started(variables).apply_launcher();
    ASSERT_EQ(note.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(note.status().parameter(), "head");
    EXPECT_THAT(note.status().message(),
                AllOf(HasSubstr(name), HasSubstr("2 workers"), HasSubstr("DSGD_HEAD")));
    EXPECT_TRUE(started(with(variables, {{"DSGD_HEAD", "h:1"}})).apply_launcher().ok());
  }
}

TEST(Launcher, UnknownNumberOfLocalWorkersIsAnErrorThatNamesItsVariable) {
  for (const auto& [name, variables] :
       {std::pair("MPI_LOCALNRANKS", kMpich), std::pair("MPI_LOCALNRANKS", kMpichPort),
        std::pair("OMPI_COMM_WORLD_LOCAL_SIZE", kOpenMpi)}) {
    const auto note = started(without(variables, name)).apply_launcher();
    ASSERT_EQ(note.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(note.status().parameter(), "head");
    EXPECT_THAT(note.status().message(), AllOf(HasSubstr(std::string(name) + " is not set"),
                                               HasSubstr(std::string("set ") + name + "=2"),
                                               HasSubstr("DSGD_HEAD"), HasSubstr("DSGD_NUM_WORKERS=1")));
    EXPECT_TRUE(started(with(variables, {{name, "2"}})).apply_launcher().ok());
  }
}

TEST(Launcher, UnknownMasterOrProxyIsAnError) {
  const struct {
    const char* name;
    Variables variables;
    const char *problem, *remedy;
  } cases[] = {
      {"no address", without(kPyTorch, "MASTER_ADDR"), "MASTER_ADDR is not set",
       "set MASTER_ADDR to the host of rank 0"},
      {"empty address", with(kPyTorch, {{"MASTER_ADDR", ""}}), "MASTER_ADDR is not set",
       "set MASTER_ADDR to the host of rank 0"},
      {"no port", without(kPyTorch, "MASTER_PORT"), "MASTER_PORT is not set",
       "set MASTER_PORT to a port of that host"},
      {"port is no number", with(kPyTorch, {{"MASTER_PORT", "http"}}), "MASTER_PORT='http' is not a port",
       "from 1 to 65535"},
      {"port is out of range", with(kPyTorch, {{"MASTER_PORT", "70000"}}),
       "MASTER_PORT='70000' is not a port", "from 1 to 65535"},
      {"no port, one host", with(without(kPyTorch, "MASTER_PORT"), {{"LOCAL_WORLD_SIZE", "2"}}),
       "MASTER_PORT is not set", "MASTER_PORT"},
      {"port of torchrun", with(kTorchrun, {{"MASTER_PORT", "x"}}), "MASTER_PORT='x' is not a port",
       "from 1 to 65535"},
      {"MPICH's proxy has no port", with(kMpichPort, {{"PMI_PORT", "vm"}}), "PMI_PORT='vm' is not HOST:PORT",
       "start the workers with mpirun"},
      {"MPICH's proxy has no host", with(kMpichPort, {{"PMI_PORT", ":38011"}}),
       "PMI_PORT=':38011' is not HOST:PORT", "start the workers with mpirun"},
      {"the port of MPICH's proxy is out of range", with(kMpichPort, {{"PMI_PORT", "vm:0"}}),
       "PMI_PORT='vm:0' is not HOST:PORT", "start the workers with mpirun"},
  };
  for (const auto& test : cases) {
    const auto note = started(test.variables).apply_launcher();
    ASSERT_EQ(note.status().code(), Code::kInvalidArgument) << test.name;
    EXPECT_EQ(note.status().parameter(), "head") << test.name;
    EXPECT_THAT(note.status().message(),
                AllOf(HasSubstr("2 workers"), HasSubstr(test.problem), HasSubstr(test.remedy),
                      HasSubstr("DSGD_HEAD"), HasSubstr("DSGD_NUM_WORKERS=1")))
        << test.name;
    // Each remedy that the message names is one.
    EXPECT_TRUE(started(with(test.variables, {{"DSGD_HEAD", "h:1"}})).apply_launcher().ok()) << test.name;
    EXPECT_TRUE(started(with(test.variables, {{"DSGD_NUM_WORKERS", "1"}})).apply_launcher().ok())
        << test.name;
    EXPECT_TRUE(started(with(test.variables, {{"DSGD_LAUNCHER", "none"}})).apply_launcher().ok())
        << test.name;
  }
  // With launcher_port the port of PyTorch's store does not matter.
  Config config = started(with(without(kPyTorch, "MASTER_PORT"), {{"DSGD_LAUNCHER_PORT", "7700"}}));
  EXPECT_TRUE(config.apply_launcher().ok());
  EXPECT_EQ(place(config), (Place{"2", "1", "job-master-0:7700", "pytorch."}));
}

TEST(Launcher, BadNumberIsAnError) {
  for (const char* bad : {"", "x", "-1", "1.5"}) {
    const auto note = started(with(kTorchrun, {{"RANK", bad}})).apply_launcher();
    ASSERT_EQ(note.status().code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(note.status().message(), AllOf(HasSubstr("RANK"), HasSubstr(std::string("'") + bad + "'"),
                                               HasSubstr("launcher=none")));
  }
  EXPECT_THAT(started(with(kPyTorch, {{"WORLD_SIZE", "two"}})).apply_launcher().status().message(),
              HasSubstr("WORLD_SIZE of PyTorch: 'two'"));
  EXPECT_THAT(started(without(kSlurm, "SLURM_STEP_NUM_TASKS")).apply_launcher().status().message(),
              HasSubstr("SLURM_STEP_NUM_TASKS of Slurm is not set"));
  EXPECT_THAT(started(with(kPyTorch, {{"RANK", "2"}})).apply_launcher().status().message(),
              HasSubstr("RANK=2 of PyTorch is not below WORLD_SIZE=2; correct it"));
  const Variables alone = with(kPyTorch, {{"RANK", "5"}, {"WORLD_SIZE", "1"}});
  EXPECT_THAT(started(alone).apply_launcher().status().message(),
              HasSubstr("RANK=5 of PyTorch is not below WORLD_SIZE=1; correct it, or set launcher=none"));
  for (const Variables& own : {Variables{{"DSGD_NUM_WORKERS", "1"}}, Variables{{"DSGD_LAUNCHER", "none"}}})
    EXPECT_TRUE(started(with(alone, own)).apply_launcher().ok());
  EXPECT_EQ(started(with(kTorchrun, {{"WORLD_SIZE", "70000"}})).apply_launcher().status().parameter(),
            "num_workers");
}

TEST(Launcher, OthersAreAWarning) {
  const std::pair<const char*, Variables> cases[] = {
      {"horovodrun", kHorovodrun},
      {"Slurm", {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}}},  // a batch script
      {"Open MPI", without(kOpenMpi, "OMPI_COMM_WORLD_RANK")},
      {"PMI", without(kMpich, "PMI_FD")},
      {"PyTorch", without(kPyTorch, "RANK")},  // some programs give the rank as an argument
      {"MVAPICH2", {{"MV2_COMM_WORLD_SIZE", "2"}}},
      {"Flux", {{"FLUX_JOB_SIZE", "2"}}},
      {"jsrun", {{"JSM_NAMESPACE_SIZE", "2"}}},
      {"PALS", {{"PALS_RANKID", "1"}}},
      {"PMIx", {{"PMIX_RANK", "1"}}},
      {"JAX", {{"JAX_NUM_PROCESSES", "2"}}},
      {"DMLC", {{"DMLC_NUM_WORKER", "2"}}},
      {"LeaderWorkerSet", {{"LWS_GROUP_SIZE", "2"}}},
      {"Kubeflow", {{"PET_NNODES", "2"}}},
      {"Kubernetes", {{"JOB_COMPLETION_INDEX", "1"}}},
  };
  for (const auto& [name, variables] : cases) {
    Config config = started(variables);
    const auto note = config.apply_launcher();
    ASSERT_TRUE(note.ok());
    EXPECT_TRUE(note.value().warning) << name;
    EXPECT_THAT(note.value().text,
                AllOf(testing::StartsWith(name), HasSubstr("trains alone"), HasSubstr("launcher=none")));
    EXPECT_EQ(config.text("num_workers"), "1");
    EXPECT_EQ(started(with(variables, {{"DSGD_LAUNCHER", "none"}})).apply_launcher().value().text, "");
    EXPECT_EQ(started(with(variables, {{"DSGD_NUM_WORKERS", "1"}})).apply_launcher().value().text, "");
  }
}

TEST(Launcher, RankZeroWithoutASizeIsAWarning) {
  for (const auto& [name, variables] :
       {std::pair("PMIx", Variables{{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prterun-vm-1@1"}}),
        std::pair("PALS", Variables{{"PALS_RANKID", "0"}})}) {
    const auto note = started(variables).apply_launcher();
    ASSERT_TRUE(note.ok());
    EXPECT_TRUE(note.value().warning);
    EXPECT_THAT(note.value().text,
                AllOf(testing::StartsWith(name), HasSubstr("if it has started others, each trains alone"),
                      HasSubstr("DSGD_HEAD"), HasSubstr("DSGD_NUM_WORKERS"), HasSubstr("launcher=none")));
  }
}

TEST(Launcher, SizeOfAnotherVariableDecidesForRankZero) {
  const Variables pmix = {{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "1760493569"}};
  const Variables pals = {{"PALS_RANKID", "0"}};
  const struct {
    Variables variables;
    const char *size, *name;
  } cases[] = {
      {pmix, "JSM_NAMESPACE_SIZE", "jsrun"},      {pmix, "FLUX_JOB_SIZE", "Flux"}, {pmix, "PMI_SIZE", "PMI"},
      {pmix, "OMPI_COMM_WORLD_SIZE", "Open MPI"}, {pmix, "SLURM_NTASKS", "Slurm"}, {pals, "PMI_SIZE", "PMI"},
  };
  for (const auto& test : cases) {
    EXPECT_EQ(started(with(test.variables, {{test.size, "1"}})).apply_launcher().value().text, "")
        << test.size;
    const auto several = started(with(test.variables, {{test.size, "2"}})).apply_launcher();
    EXPECT_TRUE(several.value().warning) << test.size;
    EXPECT_THAT(several.value().text,
                AllOf(testing::StartsWith(test.name), HasSubstr(std::string("(") + test.size + "=2)")));
  }
  // srun -n 1 --mpi=pmix
  const Variables step =
      with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(started(with(step, pmix)).apply_launcher().value().text, "");
  // A Kubernetes Job of one pod has an index, too.
  EXPECT_EQ(started({{"JOB_COMPLETION_INDEX", "0"}}).apply_launcher().value().text, "");
}

TEST(Launcher, FirstHostOfSlurmsList) {
  const std::pair<const char*, const char*> cases[] = {{"n1", "n1"},
                                                       {"n1,n2", "n1"},
                                                       {"n[1-2]", "n1"},
                                                       {"n[007-009,3]", "n007"},
                                                       {"n[5,7]-x[2-3]", "n5-x2"},
                                                       {"a[1-2]b,c", "a1b"},
                                                       {"n[3].site.org", "n3.site.org"},
                                                       {"", ""},
                                                       {"n[1", "n1"}};
  for (const auto& [nodes, first] : cases) EXPECT_EQ(config::first_slurm_host(nodes), first) << nodes;
}

}  // namespace
}  // namespace dsgd

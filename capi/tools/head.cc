// `dsgd head`: the head of one job as a process of its own.
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "capi/tools/machine_addresses.h"
#include "capi/tools/remote.h"
#include "capi/tools/tool.h"
#include "core/base/address.h"

namespace dsgd_tool {
namespace {

constexpr int32_t kPollMilliseconds = 100;  // how often the signals are looked at

struct Options : JobOptions {
  uint32_t num_workers = 0;
  bool supervised = false;
};

void print_log(const dsgd_log_record* record, void*) {
  std::fputs(record_text("dsgd", record).c_str(), stderr);
}

// 0.0.0.0 and [::] are not addresses that other machines can connect to. Prints those that are.
void explain_any_address(const std::string& address) {
  if (!dsgd::is_any_interface(address)) return;
  const std::string host = dsgd::host_of(address);
  std::string known;
  for (const auto& own : machine_addresses(host == "[::]"))
    known += (known.empty() ? ": " : ", ") + own + ":" + dsgd::port_of(address);
  std::fprintf(stderr, "dsgd head: workers elsewhere need this machine's address as head, instead of %s%s\n",
               host.c_str(), known.c_str());
}

// Has the `dsgd run` that started this head ended? See remote.h.
bool is_abandoned(const Options& options) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  char byte;
  return options.supervised && poll(&input, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

int run_head(const Options& options) {
  if (options.supervised) take_environment();
  // While dsgd_head_start blocks, a signal ends the process at once: no head serves yet. The
  // handler is needed because process 1 of a container ignores signals that have none.
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int n) { _exit(128 + n); });

  OwnedConfig config(dsgd_config_new());
  dsgd_error* error = nullptr;
  configure(config, options, {"num_workers", options.num_workers ? std::to_string(options.num_workers) : ""});
  if (!*dsgd_config_value(config.get(), "head"))
    throw Failure("no address to listen on; give --listen HOST:PORT (port 0: any), or set DSGD_HEAD");
  check(dsgd_config_log_hook(config.get(), print_log, nullptr, &error), error);

  OwnedHead head;
  check(dsgd_head_start(config.get(), head.out(), &error), error);
  // From here on sigtimedwait takes the signals. The threads of dsgd block all signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::printf("%s%s\n", options.supervised ? kHeadAddress.data() : "", dsgd_head_address(head.get()));
  flush_output();
  explain_any_address(dsgd_head_address(head.get()));
  if (!options.num_workers && dsgd_config_value(config.get(), "num_workers") == std::string("1"))
    std::fprintf(stderr, "dsgd head: warning: the job has one worker; give --num-workers N for more\n");

  for (;;) {
    const int32_t status = dsgd_head_wait(head.get(), kPollMilliseconds, &error);
    if (status == DSGD_OK) return 0;
    if (status != DSGD_ERR_WAIT_TIMEOUT) check(status, error);
    dsgd_error_free(error);
    const timespec now{};
    const int signal = sigtimedwait(&signals, nullptr, &now);
    if (signal > 0) return 128 + signal;
    if (is_abandoned(options)) return 0;
  }
}

}  // namespace

Command add_head(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("--listen", options->head,
                 "Address to listen on, HOST:PORT or unix:PATH; port 0: any (default: DSGD_HEAD)");
  app.add_option("--num-workers", options->num_workers,
                 "Workers of the job (default: DSGD_NUM_WORKERS, else 1)")
      ->check(whole_number(1, kMaxWorkers));
  add_job_options(app, options.get());
  app.add_flag("--supervised", options->supervised)->group("");  // see remote.h
  app.footer(
      "Prints the address it listens on, then serves the job until all workers have left (status 0),\n"
      "the job broke (status 1), or SIGINT or SIGTERM comes. With --set head_state=FILE the head may be\n"
      "stopped or killed, and started again by the same command: it goes on with the job, which trains on\n"
      "meanwhile, for head_timeout. FILE is removed when the job ends. With\n"
      "--set head_state=etcd://HOST:PORT,HOST:PORT/PREFIX several heads of a job may run: one serves,\n"
      "and when it is lost, another one does. The workers' key head then lists the addresses of all.\n"
      "etcds:// instead of etcd:// reaches etcd by TLS, with tls_cert, tls_key and tls_ca.");
  return [options] { return run_head(*options); };
}

}  // namespace dsgd_tool

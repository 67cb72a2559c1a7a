// The mixed-language job: starts workers in the chosen languages in turn, shows how they train one model, and
// checks that all of them end with the same bits. The workers are the trainers beside this folder; `dsgd run`
// starts them.

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chaos.h"
#include "display.h"
#include "messages.h"
#include "plot.h"

namespace {

using job::Worker;
using nlohmann::json;

struct Options {
  std::string build = "build", source = ".", python = "python3";
  std::string strategy = "allreduce", optimizer = "sgd", optimizer_options, report, plot;
  std::string device = "cpu";  // "cuda:0,cuda:1": where workers in C and Python train
  std::vector<std::string> languages = {"c", "java", "go", "python"}, settings;
  int workers = 4, epochs = 40, batch = 16, seed = 1;
  bool chaos = false;
};

const std::map<std::string, std::string> kOptimizerOptions = {
    {"sgd", "lr=0.1 momentum=0.9"}, {"adam", "lr=0.003"}, {"adamw", "lr=0.003"}};

std::vector<std::string> trainer(const Options& options, const Worker& worker) {
  const std::string build = options.build, language = worker.language;
  const bool gpu = worker.device != "cpu";
  std::vector<std::string> words;
  if (language == "c") words = {build + (gpu ? "/bin/digits_cuda" : "/bin/digits_c")};
  if (language == "go") words = {build + "/bin/digits_go"};
  if (language == "java") {
    words = {"java",
             "-XX:TieredStopAtLevel=1",
             "-Ddsgd.library.path=" + build + "/lib",
             "-cp",
             build + "/java/dsgd.jar:" + build + "/java/samples",
             "Digits"};
  }
  if (language == "python") {
    words = {"env", "PYTHONPATH=" + build + "/python", options.python,
             options.source + "/samples/python/" + (gpu ? "digits_torch.py" : "digits.py")};
  }
  if (gpu) words.insert(words.end(), {"--device", worker.device});
  return words;
}

std::vector<std::string> command_line(const Options& options, const std::vector<Worker>& workers) {
  std::vector<std::string> words = {options.build + "/bin/dsgd", "run"};
  auto set = [&](const std::string& setting) {
    words.push_back("--set");
    words.push_back(setting);
  };
  set("strategy=" + options.strategy);
  if (options.chaos) {
    words.insert(words.end(), {"--restarts", std::to_string(workers.size())});
    set("min_workers=1");
    if (options.strategy == "ps") set("copies=2");
  }
  for (const std::string& setting : options.settings) set(setting);
  for (size_t i = 0; i < workers.size(); ++i) {
    words.insert(words.end(), i == 0 ? std::initializer_list<std::string>{"-n", "1", "--"}
                                     : std::initializer_list<std::string>{":", "-n", "1"});
    for (const std::string& word : trainer(options, workers[i])) words.push_back(word);
    for (const std::string& word :
         {std::string("--data"), options.source + "/samples/data/digits.csv", std::string("--epochs"),
          std::to_string(options.epochs), std::string("--batch"), std::to_string(options.batch),
          std::string("--seed"), std::to_string(options.seed), std::string("--optimizer"), options.optimizer,
          std::string("--optimizer-options"), options.optimizer_options}) {
      words.push_back(word);
    }
  }
  return words;
}

pid_t child = -1;

void set_value(std::vector<double>& values, int epoch, double value) {
  const size_t at = static_cast<size_t>(std::max(epoch, 1)) - 1;
  if (at >= values.size()) values.resize(at + 1, NAN);
  values[at] = value;
}

// A worker's line, "[2] {...}" after the launcher's prefix. False: not one of ours.
bool take_line(const std::string& line, std::vector<Worker>& workers, std::vector<job::Curve>& curves,
               job::Display& display, job::Chaos& chaos) {
  const size_t end = line.find("] ");
  if (line.empty() || line[0] != '[' || end == std::string::npos) return false;
  const json record = json::parse(line.substr(end + 2), nullptr, false);
  const size_t rank = std::strtoul(line.c_str() + 1, nullptr, 10);
  if (!record.is_object() || rank >= workers.size()) return false;
  Worker& worker = workers[rank];
  worker.accuracy = record.value("accuracy", worker.accuracy);
  if (record.contains("epoch")) {
    worker.epoch = record["epoch"];
    worker.loss = record.value("loss", 0.0);
    worker.speed = record.value("samples_per_second", 0.0);
    set_value(curves[rank].loss, worker.epoch, worker.loss);
    set_value(curves[rank].accuracy, worker.epoch, worker.accuracy);
    display.update(rank);
    for (const std::string& news : chaos.on_epoch(rank, workers, child)) display.message(news);
  }
  worker.digest = record.value("digest", worker.digest);
  worker.device = record.value("device", worker.device);
  return true;
}

volatile std::sig_atomic_t interrupted = 0;
void pass_on(int signal) {
  interrupted = signal;
  if (child > 0) kill(child, signal);
}

// Starts the launcher and returns the end of a pipe with its output, or -1. The launcher dies with this
// process, and the workers with the launcher.
int start(const std::vector<std::string>& words) {
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return -1;
  const pid_t parent = getpid();
  child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    setpgid(0, 0);  // Ctrl-C comes from this process alone: a second signal would kill the workers
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);  // the parent died before prctl() was called
    dup2(output[1], 1);
    dup2(output[1], 2);
    std::signal(SIGPIPE, SIG_DFL);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(output[1]);
  return output[0];
}

// Runs the launcher and reads its output to the end; returns its exit status. `failure` gets the launcher's
// last report.
int run(const std::vector<std::string>& words, std::vector<Worker>& workers, std::vector<job::Curve>& curves,
        const Options& options, job::Chaos& chaos, std::string* failure) {
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, pass_on);
  std::signal(SIGPIPE, SIG_IGN);
  pollfd output{start(words), POLLIN, 0};
  if (output.fd < 0) return 1;
  if (interrupted) kill(child, interrupted);  // the signal came before there was a child
  job::Display display(workers, options.epochs);
  job::Messages messages([&](const std::string& text) {
    if (!interrupted) display.message(text);
  });
  const std::string ours = "dsgd run: ";  // of the launcher's own lines
  const auto take = [&](std::string line) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (take_line(line, workers, curves, display, chaos)) return;  // shown by the display
    if (line.rfind(ours, 0) != 0) return messages.add(line);
    for (const char* tolerated :
         {"; it is started again", "; cannot start it again", "whether the others go on"})
      if (line.find(tolerated) != std::string::npos) return display.message(line);
    *failure = line.substr(ours.size());
    messages.report(*failure);
  };
  std::string text;  // read, but not yet taken
  for (;;) {
    output.revents = 0;
    poll(&output, 1, messages.milliseconds_until_due());
    if (output.revents) {
      char bytes[65536];
      const ssize_t length = read(output.fd, bytes, sizeof bytes);
      if (length < 0 && errno == EINTR) continue;
      if (length <= 0) break;
      text.append(bytes, static_cast<size_t>(length));
      for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
        take(text.substr(0, end));
    }
    messages.show_due();
    if (!std::cout) kill(child, SIGTERM);  // nobody reads any more
  }
  if (!text.empty()) take(text);
  messages.show_rest();
  close(output.fd);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

job::Curve mean_curve(const std::vector<job::Curve>& curves) {
  job::Curve mean;
  for (size_t epoch = 0;; ++epoch) {
    double loss = 0, accuracy = 0;
    int reports = 0;
    for (const job::Curve& curve : curves) {
      if (epoch >= curve.loss.size()) return mean;
      if (std::isnan(curve.loss[epoch])) continue;  // a worker that has joined later
      loss += curve.loss[epoch];
      accuracy = curve.accuracy[epoch];
      ++reports;
    }
    if (reports == 0) return mean;
    mean.loss.push_back(loss / reports);
    mean.accuracy.push_back(accuracy);
  }
}

// Ctrl-C: one line, and the plot of the epochs that all workers have ended.
int end_interrupted(const Options& options, const std::string& title, const job::Curve& curve,
                    const job::Chaos& chaos) {
  std::cout << "Interrupted after epoch " << curve.loss.size();
  if (!curve.loss.empty() && job::write_plot(options.plot, title, curve, chaos.events()))
    std::cout << "; plot: " << options.plot;
  std::cout << std::endl;
  return 128 + interrupted;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a 64-128-10 network on handwritten digits (1797 images) with workers in several languages.",
      "samples/run");
  // samples/run shows help.txt and checks the values by it, before there is anything built.
  app.set_help_flag();
  app.add_option("--strategy", options.strategy);
  app.add_option("--workers", options.workers);
  app.add_option("--languages", options.languages)->delimiter(',');
  app.add_option("--device", options.device);
  app.add_option("--epochs", options.epochs);
  app.add_option("--batch", options.batch);
  app.add_option("--optimizer", options.optimizer);
  app.add_option("--optimizer-options", options.optimizer_options);
  app.add_option("--seed", options.seed);
  app.add_option("--set", options.settings);
  app.add_flag("--chaos", options.chaos);
  app.add_option("--report", options.report);
  app.add_option("--plot", options.plot);
  app.add_option("--build", options.build);
  app.add_option("--source", options.source);
  app.add_option("--python", options.python);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& wrong) {
    std::cerr << "samples/run: " << wrong.what() << "; `samples/run --help` lists the options\n";
    return 2;
  }
  if (options.optimizer_options.empty()) options.optimizer_options = kOptimizerOptions.at(options.optimizer);
  if (options.plot.empty()) options.plot = options.build + "/digits.svg";

  std::vector<Worker> workers(static_cast<size_t>(options.workers));
  for (size_t i = 0; i < workers.size(); ++i) {
    Worker& worker = workers[i];
    worker.language = options.languages[i % options.languages.size()];
    worker.device = worker.language == "c" || worker.language == "python" ? options.device : "cpu";
  }
  std::vector<job::Curve> curves(workers.size());
  job::Chaos chaos(options.chaos ? options.workers : 0, options.epochs);

  const auto began = std::chrono::steady_clock::now();
  const std::string title = "digits, strategy " + options.strategy + ", " + std::to_string(workers.size()) +
                            (workers.size() == 1 ? " worker, " : " workers, ") + options.optimizer + " " +
                            options.optimizer_options;
  std::string failure;
  const int status = run(command_line(options, workers), workers, curves, options, chaos, &failure);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const job::Curve curve = mean_curve(curves);
  if (interrupted) return end_interrupted(options, title, curve, chaos);
  if (status != 0) {
    std::cerr << "samples/run: the job failed with status " << status << ": "
              << (failure.empty() ? "its messages are above" : failure) << '\n';
    return status;
  }

  bool equal = true;
  double speed = 0;
  json report = {{"strategy", options.strategy}, {"seconds", seconds}, {"workers", json::array()}};
  std::cout << "\nrank language accuracy digest of values\n";  // 39 columns
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    const Worker& worker = workers[rank];
    std::printf("%4zu %-8s %6.2f %% %s\n", rank, worker.language.c_str(), worker.accuracy,
                worker.digest.c_str());
    equal = equal && !worker.digest.empty() && worker.digest == workers[0].digest;
    speed += worker.speed;
    report["workers"].push_back({{"rank", rank},
                                 {"language", worker.language},
                                 {"device", worker.device},
                                 {"accuracy", worker.accuracy},
                                 {"digest", worker.digest}});
  }
  report["samples_per_second"] = speed;
  const char* end = !equal                ? "The workers' bits DIFFER"
                    : workers.size() == 1 ? "Trained"
                                          : "All workers hold the same bits";
  std::printf("%s after %.1f s\n", end, seconds);
  std::fflush(stdout);
  bool written = job::write_plot(options.plot, title, curve, chaos.events());
  (written ? std::cout << "plot: " : std::cerr << "samples/run: cannot write ") << options.plot << std::endl;
  if (!options.report.empty()) {
    std::ofstream file(options.report);
    file << report.dump(2) << '\n';
    if (!file.flush()) {
      std::cerr << "samples/run: cannot write " << options.report << '\n';
      written = false;
    }
  }
  return equal && written ? 0 : 1;
}

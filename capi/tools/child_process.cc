#include "capi/tools/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "capi/tools/remote.h"

namespace dsgd_tool {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw system_failure("cannot create a pipe");
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  void close_read() {
    if (read >= 0) close(std::exchange(read, -1));
  }
  void close_write() {
    if (write >= 0) close(std::exchange(write, -1));
  }
  int take_read() { return take_nonblocking(&read); }
  int take_write() { return take_nonblocking(&write); }

 private:
  static int take_nonblocking(int* fd) {
    fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) | O_NONBLOCK);
    return std::exchange(*fd, -1);
  }
};

std::vector<std::string> environment_with(const std::vector<Setting>& settings) {
  auto variables = own_environment();
  for (const auto& setting : settings) variables[setting.variable()] = setting.value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> array;
  for (auto& text : texts) array.push_back(text.data());
  array.push_back(nullptr);
  return array;
}

// All that a child needs is made before the fork: between fork and exec only async-signal-safe calls are
// allowed, since the head's threads do not exist in the child.
struct Launch {
  explicit Launch(const Child& child)
      : command(child.command),
        environment(environment_with(child.settings)),
        argv(pointers(command)),
        envp(pointers(environment)) {}

  std::vector<std::string> command, environment;
  std::vector<char*> argv, envp;
  Pipe input, output, errors;
  Pipe failure;  // the errno of exec; its end is closed by an exec that succeeds
  const pid_t parent = getpid();
};

// In the child: becomes the command, or writes the errno to launch.failure and exits.
[[noreturn]] void exec_child(const Child& child, const Launch& launch, GroupGuard* guard,
                             const sigset_t& mask) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launch.parent) _exit(127);  // it died before the line above
  guard->watch(getpid());  // before the command has children of its own, whom only the guard can end
  dup2(child.input ? launch.input.read : open("/dev/null", O_RDONLY), STDIN_FILENO);
  if (child.prefix) {
    dup2(launch.output.write, STDOUT_FILENO);
    dup2(launch.errors.write, STDERR_FILENO);
  }
  // A shell starts background jobs with SIGINT ignored, which would make passing it on useless.
  for (const int number : {SIGPIPE, SIGINT, SIGTERM}) signal(number, SIG_DFL);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execvpe(launch.argv[0], launch.argv.data(), launch.envp.data());
  const int number = errno;
  [[maybe_unused]] const ssize_t n = write(launch.failure.write, &number, sizeof number);
  _exit(127);
}

// Returns the end of the message, which says what to do about the errno `number` of exec; may be empty.
const char* exec_error_remedy(const std::string& program, int number) {
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(program, ignored);
  if (is_file && number == EACCES)
    return "; make it executable (chmod +x), or run it by its interpreter: dsgd run -- python3 FILE";
  if (is_file && number == ENOENT)
    return program.find('/') == std::string::npos ? "; for the file in this folder write ./ before its name"
                                                  : "; the interpreter in its first line does not exist";
  if (number == EACCES) return "; it must be an executable file, in folders that this user may open";
  if (number == ENOENT) return "; check the path, or install the program on this node";
  return "";
}

}  // namespace

std::map<std::string, std::string, std::less<>> own_environment() {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

ChildProcess::~ChildProcess() {
  close_input();
  if (pidfd >= 0) close(pidfd);
}

void ChildProcess::write_input() {
  while (!unwritten.empty()) {
    const ssize_t n = write(input_fd, unwritten.data(), unwritten.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return unwritten.clear();  // the child has ended
    unwritten.erase(0, static_cast<size_t>(n));
  }
}

void ChildProcess::close_input() {
  if (input_fd >= 0) close(std::exchange(input_fd, -1));
  unwritten.clear();
}

bool ChildProcess::interrupt() {
  if (input_fd < 0) return false;
  if (unwritten.empty()) unwritten = kInterrupt;  // otherwise it lacks variables, and runs no worker
  write_input();
  close_input();
  return true;
}

bool ChildProcess::has_exited() const {
  pollfd exit{pidfd, POLLIN, 0};
  return pid == 0 || poll(&exit, 1, 0) > 0;
}

bool runs_in_group(pid_t pid, pid_t group) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");  // "42 (name) S PARENT GROUP ..."
  std::string text;
  std::getline(file, text, '\0');
  const size_t name_end = text.rfind(')');
  if (name_end == text.npos) return false;
  std::istringstream words(text.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0, its_group = 0;
  return words >> state >> parent >> its_group && state != 'Z' && its_group == group;
}

std::unique_ptr<ChildProcess> start_child(const Child& child, GroupGuard* guard, const sigset_t& mask) {
  Launch launch(child);
  const pid_t pid = fork();
  if (pid < 0) throw system_failure("cannot fork");
  if (pid == 0) exec_child(child, launch, guard, mask);
  setpgid(pid, pid);  // here too: whichever comes first
  auto running = std::make_unique<ChildProcess>(child, pid);
  launch.failure.close_write();
  int number = 0;
  if (read(launch.failure.read, &number, sizeof number) == sizeof number) {  // end of file: exec went well
    guard->forget(pid);
    waitpid(pid, nullptr, 0);
    const std::string& program = child.command[0];
    throw Failure("cannot run '" + program + "': " + std::strerror(number) +
                  exec_error_remedy(program, number));
  }
  running->output = std::make_unique<LineOutput>(launch.output.take_read(), OutputQueue::of(STDOUT_FILENO),
                                                 child.prefix.value_or(""), child.on_line);
  running->errors = std::make_unique<LineOutput>(launch.errors.take_read(), OutputQueue::of(STDERR_FILENO),
                                                 child.prefix.value_or(""));
  if (child.input) {
    launch.input.close_read();  // so that a child that has gone is noticed
    running->input_fd = launch.input.take_write();
    running->unwritten = *child.input;
    running->write_input();
  }
  return running;
}

}  // namespace dsgd_tool

// A real etcd server on this machine, with its data in a folder of its own.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/loopback_socket.h"
#include "transport/network.h"

extern char** environ;

namespace dsgd_test {

class EtcdServer {
 public:
  // `tls`: with it, the server asks clients for a certificate of its CA.
  explicit EtcdServer(std::optional<dsgd::transport::TlsFiles> tls = std::nullopt) : tls_(std::move(tls)) {
    std::string folder = std::filesystem::temp_directory_path() / "dsgd-etcd-XXXXXX";
    folder_ = mkdtemp(folder.data());
    // Another program may take the ports before the server does.
    for (int i = 0; i < 10 && process_ <= 0; ++i) {
      const LoopbackSocket clients, peers;
      address_ = clients.address();
      peers_ = peers.address();
      start();
    }
  }
  ~EtcdServer() {
    kill();
    std::filesystem::remove_all(folder_);
  }
  const std::string& address() const { return address_; }
  bool runs() const { return process_ > 0; }

  // The server does not answer yet.
  void start() {
    const std::string clients = (tls_ ? "https://" : "http://") + address_, peers = "http://" + peers_;
    std::vector<std::string> words = {"etcd",
                                      "--data-dir=" + folder_ + "/data",
                                      "--logger=zap",
                                      "--log-level=error",
                                      "--listen-client-urls=" + clients,
                                      "--advertise-client-urls=" + clients,
                                      "--listen-peer-urls=" + peers,
                                      "--initial-advertise-peer-urls=" + peers,
                                      "--initial-cluster=default=" + peers};
    if (tls_) {
      words.insert(words.end(), {"--cert-file=" + tls_->cert, "--key-file=" + tls_->key,
                                 "--trusted-ca-file=" + tls_->ca, "--client-cert-auth"});
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    const int failed = posix_spawnp(&process_, "etcd", &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
      process_ = -1;
      FAIL() << "there is no etcd; install Debian's package etcd-server";
    }
  }
  // Whether it has ended by itself.
  bool has_ended() {
    if (process_ <= 0 || waitpid(process_, nullptr, WNOHANG) != process_) return process_ <= 0;
    process_ = -1;
    return true;
  }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = -1;
  }

 private:
  const std::optional<dsgd::transport::TlsFiles> tls_;
  std::string folder_, address_, peers_;
  pid_t process_ = -1;
};

}  // namespace dsgd_test

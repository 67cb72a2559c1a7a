// Workers of this process as if on several machines.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "transport/uv/environment.h"

namespace dsgd {

// The machine that this process runs on, under another name: a node of its own.
class NodeEnvironment final : public transport::Environment {
 public:
  explicit NodeEnvironment(std::string node)
      : node_(std::move(node)), real_(transport::make_uv_environment()) {}
  Result<std::unique_ptr<transport::Network>> new_network(const std::string& name,
                                                          size_t receive_memory) override {
    return real_->new_network(name, receive_memory);
  }
  Status use_tls(const transport::TlsFiles& files, std::function<void(const std::string&)> warn) override {
    return real_->use_tls(files, std::move(warn));
  }
  Result<std::unique_ptr<transport::Notifier>> new_notifier() override { return real_->new_notifier(); }
  Status start_thread(const std::string& name, std::function<void()> program) override {
    return real_->start_thread(name, std::move(program));
  }
  void limit_resolving(transport::Time until) override { real_->limit_resolving(until); }
  Result<std::shared_ptr<transport::Files>> new_files() override { return real_->new_files(); }
  std::string host_name() override { return node_.empty() ? real_->host_name() : node_; }
  std::string machine() override { return node_.empty() ? real_->machine() : node_; }
  int64_t process_id() override { return real_->process_id(); }
  int processors() override { return real_->processors(); }
  int64_t free_descriptors() override { return real_->free_descriptors(); }
  Code life() const noexcept override { return real_->life(); }

 private:
  const std::string node_;
  const std::unique_ptr<transport::Environment> real_;
};

}  // namespace dsgd

// An environment with other files.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "transport/network.h"

namespace dsgd_test {

class WithFiles final : public dsgd::transport::Environment {
 public:
  WithFiles(std::unique_ptr<dsgd::transport::Environment> real, std::shared_ptr<dsgd::transport::Files> files)
      : real_(std::move(real)), files_(std::move(files)) {}
  dsgd::Result<std::unique_ptr<dsgd::transport::Network>> new_network(const std::string& name,
                                                                      size_t receive_memory) override {
    return real_->new_network(name, receive_memory);
  }
  dsgd::Result<std::shared_ptr<dsgd::transport::Files>> new_files() override { return files_; }
  std::string host_name() override { return real_->host_name(); }
  std::string machine() override { return real_->machine(); }
  int64_t process_id() override { return real_->process_id(); }
  int processors() override { return real_->processors(); }
  int64_t free_descriptors() override { return real_->free_descriptors(); }
  dsgd::Code life() const noexcept override { return real_->life(); }

 private:
  const std::unique_ptr<dsgd::transport::Environment> real_;
  const std::shared_ptr<dsgd::transport::Files> files_;
};

}  // namespace dsgd_test

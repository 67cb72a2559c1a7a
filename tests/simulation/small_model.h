// A model of one parameter, and its checkpoints, for jobs that a test writes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "cluster.h"
#include "tests/unit/checkpoint/memory_files.h"
#include "tests/unit/wait_for.h"

namespace dsgd::simulation {

// Adds a parameter with this gradient and this value in each element, for sgd at a rate of 1. Returns its
// values.
inline float* add_model(Session& session, int64_t elements, float gradient, float value = 0) {
  (void)session.set_optimizer("sgd", "lr=1");
  Parameter* const parameter = session.add_parameter("p", DType::kFloat32, {&elements, 1}, true).value();
  const auto memory = session.alloc(session.add_replica("cpu").value(), parameter).value();
  std::fill_n(static_cast<float*>(memory->gradient), elements, gradient);
  std::fill_n(static_cast<float*>(memory->value), elements, value);
  return static_cast<float*>(memory->value);
}

inline Status save(Session& session, const std::string& folder = "./model") {
  return wait_for(session, session.save_checkpoint(folder, Session::Mode::kWait));
}
inline Status load(Session& session) {
  return wait_for(session, session.load_checkpoint("./model", Session::Mode::kWait));
}

// The disk that a job leaves which saves after so many steps. Its model begins with this value, and has a
// gradient of 1.
inline std::shared_ptr<dsgd_test::MemoryDisk> disk_of_job(int steps, int64_t elements, float value) {
  const auto disk = std::make_shared<dsgd_test::MemoryDisk>();
  Cluster cluster({.workers = 1, .files = true, .disk = disk},
                  [=](Cluster& job, Session& session, int worker) {
                    add_model(session, elements, 1, value);
                    if (!job.note(worker, "start", [&] { return session.start(); })) return;
                    StepResult result;
                    for (int k = 0; k < steps; ++k)
                      job.note(worker, "step", [&] { return session.step(1, &result); });
                    job.note(worker, "save", [&] { return save(session); });
                  });
  EXPECT_TRUE(cluster.run_until_ended(std::chrono::seconds(60)));
  EXPECT_FALSE(cluster.first_failure(0)) << cluster.history(0);
  return disk;
}

}  // namespace dsgd::simulation

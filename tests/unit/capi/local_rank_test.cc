// A worker's place among those of its machine, where the job has several machines.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "capi/src/session.h"
#include "core/config/config.h"
#include "tests/unit/capi/world.h"
#include "tests/unit/node_environment.h"

namespace dsgd::capi {
namespace {

struct Place {
  const char* machine;
  int32_t local_rank, local_size;
};

TEST(LocalRank, counts_the_workers_of_the_same_machine) {
  const Place by_rank[] = {{"blue", 0, 2}, {"red", 0, 3}, {"red", 1, 3},
                           {"blue", 1, 2}, {"red", 2, 3}, {"grey", 0, 1}};
  const int32_t workers = std::size(by_rank);
  dsgd_error* error = nullptr;
  dsgd_config* config = quiet_config();
  must(dsgd_config_set(config, "head", "127.0.0.1:0", &error), error, "head");
  must(dsgd_config_set(config, "num_workers", std::to_string(workers).c_str(), &error), error, "num_workers");
  dsgd_head* head = nullptr;
  must(dsgd_head_start(config, &head, &error), error, "dsgd_head_start");
  dsgd_config_free(config);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      const Place& place = by_rank[rank];
      Config own;
      for (const auto& [key, value] : {std::pair<const char*, std::string>("head", dsgd_head_address(head)),
                                       {"num_workers", std::to_string(workers)},
                                       {"rank", std::to_string(rank)},
                                       {"embed_head", "never"}}) {
        ASSERT_TRUE(own.set(key, value).ok()) << key;
      }
      auto opened =
          Session::open(own, std::make_unique<NodeEnvironment>(place.machine), std::make_shared<Log>());
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      auto* session = new dsgd_session(nullptr);
      session->core = std::move(opened).value();
      EXPECT_EQ(dsgd_rank(session), rank);
      EXPECT_EQ(dsgd_size(session), workers);
      EXPECT_EQ(dsgd_local_rank(session), place.local_rank) << "rank " << rank;
      EXPECT_EQ(dsgd_local_size(session), place.local_size) << "rank " << rank;
      dsgd_finalize(session);
    });
  }
  for (std::thread& thread : threads) thread.join();
  dsgd_head_free(head);
}

}  // namespace
}  // namespace dsgd::capi

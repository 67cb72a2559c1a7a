// Putting and deleting objects, by one worker and by several at once.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "job.h"

namespace dsgd_test::objects_test {
namespace {

void put(dsgd_session* session, const char* name, const std::string& text) {
  DSGD_OK_OR_FAIL(
      dsgd_object_put(session, name, text.data(), text.size(), -1, nullptr, 0, nullptr, nullptr, error_));
}

std::string get(dsgd_session* session, const char* name) {
  dsgd_object* object = nullptr;
  Error error;
  EXPECT_EQ(dsgd_object_get(session, name, nullptr, &object, nullptr, error), DSGD_OK) << error.message();
  const std::string text(static_cast<const char*>(dsgd_object_data(object)), dsgd_object_nbytes(object));
  dsgd_object_free(object);
  return text;
}

bool has(dsgd_session* session, const char* name) {
  dsgd_object* object = nullptr;
  const dsgd_op_options at_once = with_timeout(1);
  const int32_t status = dsgd_object_get(session, name, &at_once, &object, nullptr, nullptr);
  EXPECT_TRUE(status == DSGD_OK || status == DSGD_ERR_TIMEOUT) << dsgd_status_name(status);
  dsgd_object_free(object);
  return status == DSGD_OK;
}

void meet(dsgd_session* session) {
  DSGD_OK_OR_FAIL(dsgd_barrier(session, nullptr, nullptr, nullptr, error_));
}

TEST(DeletedObject, IsGoneOnAllWorkersAndItsNameCanBePutAgain) {
  for (const int workers : {1, 2, 3}) {
    run_job(workers, {}, [&](dsgd_session* session, int rank) {
      for (int round = 0; round < 2 * workers; ++round) {
        const int putter = round % workers, deleter = (round / 2 + 1) % workers;
        const std::string text = "round " + std::to_string(round);
        if (rank == putter) put(session, "x", text);
        EXPECT_EQ(get(session, "x"), text);
        meet(session);
        if (rank == deleter) DSGD_OK_OR_FAIL(dsgd_object_delete(session, "x", nullptr, nullptr, error_));
        meet(session);
        EXPECT_FALSE(has(session, "x")) << "round " << round;
        Error error;
        EXPECT_EQ(dsgd_object_delete(session, "x", nullptr, nullptr, error), DSGD_ERR_NOT_FOUND)
            << error.message();
        meet(session);
      }
    });
  }
}

TEST(DeletedObject, StaysReadableThroughHandles) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    if (rank == 0) put(session, "x", "bytes");
    dsgd_object* object = nullptr;
    DSGD_OK_OR_FAIL(dsgd_object_get(session, "x", nullptr, &object, nullptr, error_));
    meet(session);
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_object_delete(session, "x", nullptr, nullptr, error_));
    meet(session);
    EXPECT_EQ(std::string(static_cast<const char*>(dsgd_object_data(object)), dsgd_object_nbytes(object)),
              "bytes");
    dsgd_object_free(object);
  });
}

TEST(DeletedObject, HasOneWinnerAmongConcurrentDeletes) {
  std::atomic<int> deleted{0};
  constexpr int kRounds = 30;
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    for (int round = 0; round < kRounds; ++round) {
      if (rank == round % 3) put(session, "x", "bytes");
      get(session, "x");
      meet(session);
      const int32_t status = dsgd_object_delete(session, "x", nullptr, nullptr, nullptr);
      if (status == DSGD_OK)
        ++deleted;
      else
        EXPECT_EQ(status, DSGD_ERR_NOT_FOUND);
      meet(session);
      EXPECT_FALSE(has(session, "x"));
      meet(session);
    }
  });
  EXPECT_EQ(deleted, kRounds);
}

// The deletion starts before the last worker has all parts. That worker must not keep the parts that arrive
// later.
TEST(DeletedObject, DropsPartsThatArriveLate) {
  const std::string large(5 << 20, 'x');  // in many parts
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    for (int round = 0; round < 12; ++round) {
      const int putter = round % 3, deleter = (round + 1 + round / 6) % 3;
      std::thread putting;
      if (rank == putter) putting = std::thread([&] { put(session, "x", large); });
      if (rank == deleter) {
        int32_t status;
        while ((status = dsgd_object_delete(session, "x", nullptr, nullptr, nullptr)) == DSGD_ERR_NOT_FOUND)
          std::this_thread::yield();
        EXPECT_EQ(status, DSGD_OK);
      }
      if (putting.joinable()) putting.join();
      meet(session);
      EXPECT_FALSE(has(session, "x")) << "round " << round;
      meet(session);
    }
  });
}

// Calls that end at once, one after the other, must not keep the session from its sockets.
TEST(DeletedObject, ArrivesAtAWorkerThatPolls) {
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    if (rank == 1) return put(session, "x", "bytes");
    const auto began = std::chrono::steady_clock::now();
    while (dsgd_object_delete(session, "x", nullptr, nullptr, nullptr) == DSGD_ERR_NOT_FOUND) {
      ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
    }
  });
}

TEST(DeletedObject, NameCanBePutAgainAfterAPutThatRanOutOfTime) {
  const std::string large(64 << 20, 'x');
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    meet(session);
    if (rank == 1) {
      const dsgd_op_options too_short = with_timeout(1);
      EXPECT_EQ(dsgd_object_put(session, "x", large.data(), large.size(), -1, nullptr, 0, &too_short, nullptr,
                                nullptr),
                DSGD_ERR_TIMEOUT);
    }
    meet(session);
    if (rank == 2) {  // another worker than the one whose put has failed
      const int32_t status = dsgd_object_delete(session, "x", nullptr, nullptr, nullptr);
      EXPECT_TRUE(status == DSGD_OK || status == DSGD_ERR_NOT_FOUND) << dsgd_status_name(status);
      put(session, "x", "bytes");
    }
    EXPECT_EQ(get(session, "x"), "bytes");
    meet(session);
  });
}

TEST(Put, KeepsDtypeAndShape) {
  const std::vector<int64_t> shapes[] = {{}, {6}, {2, 3}, {1, 6, 1}, {4, 0}};
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    for (size_t i = 0; i < std::size(shapes); ++i) {
      const std::vector<int64_t>& shape = shapes[i];
      const std::string name = "array " + std::to_string(i);
      int64_t count = 1;
      for (int64_t dimension : shape) count *= dimension;
      std::vector<double> elements(count, 0.5);
      if (rank == static_cast<int>(i % 3)) {
        DSGD_OK_OR_FAIL(dsgd_object_put(session, name.c_str(), elements.data(),
                                        elements.size() * sizeof(double), DSGD_FLOAT64, shape.data(),
                                        shape.size(), nullptr, nullptr, error_));
      }
      dsgd_object* object = nullptr;
      DSGD_OK_OR_FAIL(dsgd_object_get(session, name.c_str(), nullptr, &object, nullptr, error_));
      EXPECT_EQ(dsgd_object_dtype(object), DSGD_FLOAT64);
      EXPECT_EQ(std::vector(dsgd_object_shape(object), dsgd_object_shape(object) + dsgd_object_ndim(object)),
                shape);
      ASSERT_EQ(dsgd_object_nbytes(object), elements.size() * sizeof(double));
      EXPECT_TRUE(
          std::equal(elements.begin(), elements.end(), static_cast<const double*>(dsgd_object_data(object))));
      dsgd_object_free(object);
    }
    if (rank == 1) put(session, "bytes", "text");
    dsgd_object* object = nullptr;
    DSGD_OK_OR_FAIL(dsgd_object_get(session, "bytes", nullptr, &object, nullptr, error_));
    EXPECT_EQ(dsgd_object_dtype(object), -1);
    EXPECT_EQ(dsgd_object_ndim(object), 0u);
    dsgd_object_free(object);
    meet(session);
  });
}

TEST(Put, ReachesTheOthersWhenAWorkerHasClosed) {
  std::atomic<bool> closed{false}, got{false};
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    meet(session);
    if (rank == 2) {
      DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
      closed = true;
      return;
    }
    if (rank == 0) {
      EXPECT_EQ(get(session, "late"), "bytes");
      got = true;
      return;
    }
    while (!closed) std::this_thread::yield();
    Error error;
    EXPECT_EQ(dsgd_object_put(session, "late", "bytes", 5, -1, nullptr, 0, nullptr, nullptr, error),
              DSGD_ERR_WORKER_LOST)
        << error.message();
    EXPECT_EQ(error.rank(), 2) << error.message();
    while (!got) std::this_thread::yield();
  });
}

// Large enough that the put is in flight when its worker closes.
TEST(Put, IsAwaitedByClose) {
  constexpr size_t kLarge = 40 << 20;
  for (const int putter : {0, 1}) {
    run_job(2, {}, [&](dsgd_session* session, int rank) {
      if (rank != putter) {
        EXPECT_EQ(get(session, "x"), std::string(kLarge, 'a'));
        return;
      }
      const std::string text(kLarge, 'a');
      dsgd_op* op = nullptr;
      DSGD_OK_OR_FAIL(
          dsgd_object_put(session, "x", text.data(), kLarge, -1, nullptr, 0, nullptr, &op, error_));
      DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, 0, error_));
      dsgd_op_free(op);
    });
  }
}

TEST(DeletedObject, IsGoneBeforeItsDeleterCloses) {
  for (const int deleter : {0, 1}) {
    run_job(3, {}, [&](dsgd_session* session, int rank) {
      if (rank == deleter) put(session, "x", "bytes");
      EXPECT_EQ(get(session, "x"), "bytes");
      meet(session);
      // An object that is here is given at once; else the get fails, since workers close.
      if (rank != deleter) {
        int32_t status = DSGD_OK;
        while (status == DSGD_OK) {
          dsgd_object* object = nullptr;
          const dsgd_op_options at_once = with_timeout(1);
          status = dsgd_object_get(session, "x", &at_once, &object, nullptr, nullptr);
          dsgd_object_free(object);
        }
        return;
      }
      dsgd_op* op = nullptr;
      DSGD_OK_OR_FAIL(dsgd_object_delete(session, "x", nullptr, &op, error_));
      DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));
      DSGD_OK_OR_FAIL(dsgd_op_wait(op, 0, error_));
      dsgd_op_free(op);
    });
  }
}

TEST(Get, EndsAtOnceWhenItsWorkerCloses) {
  std::atomic<bool> closed{false};
  run_job(2, {}, [&](dsgd_session* session, int rank) {
    if (rank == 1) {  // stays, so that the get does not end because a worker has closed
      while (!closed) std::this_thread::yield();
      return;
    }
    dsgd_op* op = nullptr;
    DSGD_OK_OR_FAIL(dsgd_object_get(session, "never", nullptr, nullptr, &op, error_));
    DSGD_OK_OR_FAIL(dsgd_close(session, -1, error_));  // the get's own deadline is step_timeout
    EXPECT_EQ(dsgd_op_wait(op, 0, nullptr), DSGD_ERR_CLOSED);
    dsgd_op_free(op);
    closed = true;
  });
}

TEST(DeletedObject, NeedsNoWorkerThatHasClosed) {
  std::atomic<int> looked{0};
  run_job(3, {}, [&](dsgd_session* session, int rank) {
    if (rank == 1) put(session, "x", "bytes");
    get(session, "x");
    meet(session);
    if (rank == 2) return;  // closes its session
    if (rank == 1) DSGD_OK_OR_FAIL(dsgd_object_delete(session, "x", nullptr, nullptr, error_));
    while (has(session, "x")) std::this_thread::yield();
    ++looked;
    while (looked < 2) std::this_thread::yield();  // a worker that is alone is told so by dsgd_object_get
  });
}

}  // namespace
}  // namespace dsgd_test::objects_test

// Collectives. Those that carry data share the checks of session, group, dtype and buffers.
#include "tests/unit/capi/bad_input.h"

namespace {

// One collective with all that may be wrong about it; the rest is right.
struct Arguments {
  dsgd_session* session;
  dsgd_group* group = nullptr;
  void* data;
  size_t nbytes = 8;
  int32_t dtype = DSGD_FLOAT32;
  int32_t reduction = DSGD_SUM;
  int32_t root = 0;
};

using Collective = int32_t (*)(const Arguments&, dsgd_error**);

float receive[2];

int32_t allreduce(const Arguments& a, dsgd_error** e) {
  return dsgd_allreduce(a.session, a.group, a.data, a.data, a.nbytes, a.dtype, a.reduction, nullptr, nullptr,
                        e);
}
int32_t broadcast(const Arguments& a, dsgd_error** e) {
  return dsgd_broadcast(a.session, a.group, a.data, a.nbytes, a.dtype, a.root, nullptr, nullptr, e);
}
int32_t allgather(const Arguments& a, dsgd_error** e) {
  return dsgd_allgather(a.session, a.group, a.data, a.nbytes, receive, sizeof receive, nullptr, a.dtype,
                        nullptr, nullptr, e);
}
int32_t reduce_scatter(const Arguments& a, dsgd_error** e) {
  return dsgd_reduce_scatter(a.session, a.group, a.data, a.nbytes, receive, sizeof receive, nullptr, a.dtype,
                             a.reduction, nullptr, nullptr, e);
}

}  // namespace

std::vector<BadCall> collective_cases() {
  using W = World&;
  using E = dsgd_error**;
  constexpr int64_t kInvalid = DSGD_ERR_INVALID_ARGUMENT, kClosed = DSGD_ERR_CLOSED;
  static float data[3];
  std::vector<BadCall> cases;
  const std::pair<const char*, Collective> collectives[] = {{"dsgd_allreduce", allreduce},
                                                            {"dsgd_broadcast", broadcast},
                                                            {"dsgd_allgather", allgather},
                                                            {"dsgd_reduce_scatter", reduce_scatter}};
  for (const auto& [name, collective] : collectives) {
    // `change` makes one of the arguments wrong.
    const auto add = [&, name = name, collective = collective](const char* what, int64_t expected,
                                                               const Words& says,
                                                               std::function<void(W, Arguments&)> change) {
      cases.push_back({name, what, expected, says, [collective, change](W w, E e) -> int64_t {
                         Arguments arguments{.session = w.running.session, .data = data};
                         change(w, arguments);
                         return collective(arguments, e);
                       }});
    };
    add("NULL session", kInvalid, "'session' is NULL", [](W, Arguments& a) { a.session = nullptr; });
    add("foreign session", kInvalid, "not a dsgd_session",
        [](W w, Arguments& a) { a.session = foreign<dsgd_session>(w.config); });
    add("closed", kClosed, "closed", [](W w, Arguments& a) { a.session = w.closed.session; });
    add("a group", kInvalid, {"'group'", "must be NULL"},
        [](W w, Arguments& a) { a.group = foreign<dsgd_group>(w.config); });
    add("bad dtype", kInvalid, {"dtype 9", "enum dsgd_dtype (0 to 8)"}, [](W, Arguments& a) { a.dtype = 9; });
    add("NULL buffer", kInvalid, "is NULL", [](W, Arguments& a) { a.data = nullptr; });
    add("half an element", kInvalid, {"has 10 bytes", "float32", "4 bytes"},
        [](W, Arguments& a) { a.nbytes = 10; });
  }
  const auto add = [&](const char* function, const char* what, const Words& says,
                       std::function<int64_t(W, E)> call) {
    cases.push_back({function, what, kInvalid, says, std::move(call)});
  };
  for (const auto& [name, collective] : {collectives[0], collectives[3]}) {
    add(name, "bad reduction", {"reduction 7", "enum dsgd_reduction (0 to 4)"},
        [collective = collective](W w, E e) {
          return collective({.session = w.running.session, .data = data, .reduction = 7}, e);
        });
    add(name, "mean of integers", {"DSGD_MEAN needs a floating-point dtype, not int32", "DSGD_SUM"},
        [collective = collective](W w, E e) {
          return collective(
              {.session = w.running.session, .data = data, .dtype = DSGD_INT32, .reduction = DSGD_MEAN}, e);
        });
  }
  add("dsgd_broadcast", "no such root", {"root 5", "ranks 0 .. 0"},
      [](W w, E e) { return broadcast({.session = w.running.session, .data = data, .root = 5}, e); });
  add("dsgd_broadcast", "negative root", {"root -1", "ranks 0 .. 0"},
      [](W w, E e) { return broadcast({.session = w.running.session, .data = data, .root = -1}, e); });
  add("dsgd_allgather", "receive too small", {"`send` has 2 elements", "part has 1"}, [](W w, E e) {
    return dsgd_allgather(w.running.session, nullptr, data, 8, receive, 4, nullptr, DSGD_FLOAT32, nullptr,
                          nullptr, e);
  });
  add("dsgd_allgather", "NULL receive", "'receive' is NULL", [](W w, E e) {
    return dsgd_allgather(w.running.session, nullptr, data, 8, nullptr, 8, nullptr, DSGD_FLOAT32, nullptr,
                          nullptr, e);
  });
  add("dsgd_allgather", "counts of another size", {"`element_counts`", "more than the 2 elements"},
      [](W w, E e) {
        const size_t counts[] = {3};
        return dsgd_allgather(w.running.session, nullptr, data, 8, receive, 8, counts, DSGD_FLOAT32, nullptr,
                              nullptr, e);
      });
  add("dsgd_reduce_scatter", "receive too small", {"`receive` has 1 elements", "part has 2"}, [](W w, E e) {
    return dsgd_reduce_scatter(w.running.session, nullptr, data, 8, receive, 4, nullptr, DSGD_FLOAT32,
                               DSGD_SUM, nullptr, nullptr, e);
  });
  add("dsgd_reduce_scatter", "counts of another size", {"`element_counts` add up to 1 elements", "has 2"},
      [](W w, E e) {
        const size_t counts[] = {1};
        return dsgd_reduce_scatter(w.running.session, nullptr, data, 8, receive, 8, counts, DSGD_FLOAT32,
                                   DSGD_SUM, nullptr, nullptr, e);
      });
  add("dsgd_barrier", "options that were not initialized",
      {"'options'", "struct_size 0", "dsgd_op_options_init"}, [](W w, E e) {
        const dsgd_op_options options{};
        return dsgd_barrier(w.running.session, nullptr, &options, nullptr, e);
      });
  add("dsgd_barrier", "no such channel", {"no channel 4", "channels are 0 to 3"}, [](W w, E e) {
    dsgd_op_options options;
    dsgd_op_options_init(&options, sizeof options);
    options.channel = DSGD_CHANNELS;
    return dsgd_barrier(w.running.session, nullptr, &options, nullptr, e);
  });
  add("dsgd_barrier", "a stream", {"a stream is given", "only collectives with data"}, [](W w, E e) {
    dsgd_op_options options;
    dsgd_op_options_init(&options, sizeof options);
    options.stream = &options;
    return dsgd_barrier(w.running.session, nullptr, &options, nullptr, e);
  });
  add("dsgd_allreduce", "a stream for host memory",
      {"a stream is given", "host memory", "leave `stream` NULL"}, [](W w, E e) {
        dsgd_op_options options;
        dsgd_op_options_init(&options, sizeof options);
        options.stream = &options;
        return dsgd_allreduce(w.running.session, nullptr, data, receive, 8, DSGD_FLOAT32, DSGD_SUM, &options,
                              nullptr, e);
      });
  add("dsgd_barrier", "no time", {"timeout is 0 ms", "at least 1 ms"}, [](W w, E e) {
    dsgd_op_options options;
    dsgd_op_options_init(&options, sizeof options);
    options.timeout_ms = 0;
    return dsgd_barrier(w.running.session, nullptr, &options, nullptr, e);
  });
  add("dsgd_barrier", "NULL session", "'session' is NULL",
      [](W, E e) { return dsgd_barrier(nullptr, nullptr, nullptr, nullptr, e); });
  add("dsgd_barrier", "a group", "'group'", [](W w, E e) {
    return dsgd_barrier(w.running.session, foreign<dsgd_group>(w.config), nullptr, nullptr, e);
  });
  cases.push_back({"dsgd_barrier", "closed", kClosed, "closed",
                   [](W w, E e) { return dsgd_barrier(w.closed.session, nullptr, nullptr, nullptr, e); }});
  return cases;
}

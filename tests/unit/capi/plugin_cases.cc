// Plug-ins.
#include <cstring>

#include "tests/unit/capi/bad_input.h"

namespace {

int32_t nothing(void*, int32_t, int32_t, uint64_t, dsgd_schedule*) { return DSGD_OK; }
int32_t first(void*, const dsgd_placement*) { return 0; }

dsgd_algorithm algorithm() {
  dsgd_algorithm made;
  dsgd_algorithm_init(&made, sizeof made);
  made.version = DSGD_PLUGIN_VERSION;
  made.allreduce = nothing;
  return made;
}
dsgd_strategy strategy() {
  dsgd_strategy made;
  dsgd_strategy_init(&made, sizeof made);
  made.version = DSGD_PLUGIN_VERSION;
  made.owner = first;
  return made;
}

int64_t with_algorithm(World& world, const char* name, dsgd_error** error, void (*spoil)(dsgd_algorithm*)) {
  dsgd_algorithm spoilt = algorithm();
  spoil(&spoilt);
  return dsgd_algorithm_register(world.config, name, &spoilt, error);
}
int64_t with_strategy(World& world, const char* name, dsgd_error** error, void (*spoil)(dsgd_strategy*)) {
  dsgd_strategy spoilt = strategy();
  spoil(&spoilt);
  return dsgd_strategy_register(world.config, name, &spoilt, error);
}

}  // namespace

std::vector<BadCall> plugin_cases() {
  using W = World&;
  using E = dsgd_error**;
  constexpr int64_t kInvalid = DSGD_ERR_INVALID_ARGUMENT, kExists = DSGD_ERR_EXISTS,
                    kUnsupported = DSGD_ERR_UNSUPPORTED;
  return {
      {"dsgd_schedule_add", "NULL schedule", kInvalid, "'schedule' is NULL",
       [](W, E e) { return dsgd_schedule_add(nullptr, 0, 0, 1, 0, 1, e); }},
      {"dsgd_schedule_add", "foreign handle", kInvalid, "'schedule'",
       [](W w, E e) { return dsgd_schedule_add(foreign<dsgd_schedule>(w.config), 0, 0, 1, 0, 1, e); }},

      {"dsgd_placement_parameter", "NULL", 0, nullptr,
       [](W, E) { return std::strlen(dsgd_placement_parameter(nullptr)); }},
      {"dsgd_placement_begin", "NULL", 0, nullptr, [](W, E) { return dsgd_placement_begin(nullptr); }},
      {"dsgd_placement_count", "foreign", 0, nullptr,
       [](W w, E) { return dsgd_placement_count(foreign<dsgd_placement>(w.config)); }},
      {"dsgd_placement_size", "NULL", 0, nullptr, [](W, E) { return dsgd_placement_size(nullptr); }},
      {"dsgd_placement_options", "NULL", 0, nullptr,
       [](W, E) { return std::strlen(dsgd_placement_options(nullptr)); }},

      {"dsgd_algorithm_init", "NULL", kInvalid, nullptr,
       [](W, E) { return dsgd_algorithm_init(nullptr, sizeof(dsgd_algorithm)); }},
      {"dsgd_algorithm_init", "a size that is none", kInvalid, nullptr,
       [](W, E) {
         dsgd_algorithm made;
         return dsgd_algorithm_init(&made, 8);
       }},
      {"dsgd_algorithm_register", "NULL config", kInvalid, "'config' is NULL",
       [](W, E e) {
         const dsgd_algorithm made = algorithm();
         return dsgd_algorithm_register(nullptr, "mine", &made, e);
       }},
      {"dsgd_algorithm_register", "NULL name", kInvalid, "'name' is NULL",
       [](W w, E e) { return with_algorithm(w, nullptr, e, [](dsgd_algorithm*) {}); }},
      {"dsgd_algorithm_register", "empty name", kInvalid, "'name'",
       [](W w, E e) { return with_algorithm(w, "", e, [](dsgd_algorithm*) {}); }},
      {"dsgd_algorithm_register", "a name with a space", kInvalid, "name 'my ring'",
       [](W w, E e) { return with_algorithm(w, "my ring", e, [](dsgd_algorithm*) {}); }},
      {"dsgd_algorithm_register", "a name that begins with a digit", kInvalid, "begin with a letter",
       [](W w, E e) { return with_algorithm(w, "2rings", e, [](dsgd_algorithm*) {}); }},
      {"dsgd_algorithm_register", "a long name", kInvalid, "1 to 64",
       [](W w, E e) { return with_algorithm(w, std::string(65, 'a').c_str(), e, [](dsgd_algorithm*) {}); }},
      {"dsgd_algorithm_register",
       "a name that is taken",
       kExists,
       {"'direct' is taken", "one of its own"},
       [](W w, E e) { return with_algorithm(w, "direct", e, [](dsgd_algorithm*) {}); }},
      {"dsgd_algorithm_register", "the name of the selector", kExists, "'auto' is taken",
       [](W w, E e) { return with_algorithm(w, "auto", e, [](dsgd_algorithm*) {}); }},
      {"dsgd_algorithm_register", "NULL struct", kInvalid, "'algorithm' is NULL",
       [](W w, E e) { return dsgd_algorithm_register(w.config, "mine", nullptr, e); }},
      {"dsgd_algorithm_register", "a struct without size", kInvalid, "dsgd_algorithm_init",
       [](W w, E e) { return with_algorithm(w, "mine", e, [](dsgd_algorithm* a) { a->struct_size = 0; }); }},
      {"dsgd_algorithm_register",
       "no version",
       kUnsupported,
       {"version 0", "set it to DSGD_PLUGIN_VERSION"},
       [](W w, E e) { return with_algorithm(w, "mine", e, [](dsgd_algorithm* a) { a->version = 0; }); }},
      {"dsgd_algorithm_register", "a newer version", kUnsupported,
       "has version 2, this library supports versions 1 to 1",
       [](W w, E e) { return with_algorithm(w, "mine", e, [](dsgd_algorithm* a) { a->version = 2; }); }},
      {"dsgd_algorithm_register",
       "unknown flags",
       kInvalid,
       {"unknown bits in flags 4", "set it to 0"},
       [](W w, E e) { return with_algorithm(w, "mine", e, [](dsgd_algorithm* a) { a->flags = 4; }); }},
      {"dsgd_algorithm_register", "no function", kInvalid, "'allreduce' is NULL",
       [](W w, E e) {
         return with_algorithm(w, "mine", e, [](dsgd_algorithm* a) { a->allreduce = nullptr; });
       }},

      {"dsgd_strategy_init", "NULL", kInvalid, nullptr,
       [](W, E) { return dsgd_strategy_init(nullptr, sizeof(dsgd_strategy)); }},
      {"dsgd_strategy_init", "a size that is none", kInvalid, nullptr,
       [](W, E) {
         dsgd_strategy made;
         return dsgd_strategy_init(&made, 1 << 20);
       }},
      {"dsgd_strategy_register", "NULL config", kInvalid, "'config' is NULL",
       [](W, E e) {
         const dsgd_strategy made = strategy();
         return dsgd_strategy_register(nullptr, "mine", &made, e);
       }},
      {"dsgd_strategy_register", "NULL name", kInvalid, "'name' is NULL",
       [](W w, E e) { return with_strategy(w, nullptr, e, [](dsgd_strategy*) {}); }},
      {"dsgd_strategy_register", "capital letters", kInvalid, "name 'Mine'",
       [](W w, E e) { return with_strategy(w, "Mine", e, [](dsgd_strategy*) {}); }},
      {"dsgd_strategy_register", "an alias", kExists, "'mirrored' is taken",
       [](W w, E e) { return with_strategy(w, "mirrored", e, [](dsgd_strategy*) {}); }},
      {"dsgd_strategy_register", "NULL struct", kInvalid, "'strategy' is NULL",
       [](W w, E e) { return dsgd_strategy_register(w.config, "mine", nullptr, e); }},
      {"dsgd_strategy_register", "a struct without size", kInvalid, "dsgd_strategy_init",
       [](W w, E e) { return with_strategy(w, "mine", e, [](dsgd_strategy* s) { s->struct_size = 0; }); }},
      {"dsgd_strategy_register", "no version", kUnsupported, "DSGD_PLUGIN_VERSION",
       [](W w, E e) { return with_strategy(w, "mine", e, [](dsgd_strategy* s) { s->version = 0; }); }},
      {"dsgd_strategy_register",
       "unknown flags",
       kInvalid,
       {"unknown bits in flags 2", "dsgd_strategy_flags"},
       [](W w, E e) { return with_strategy(w, "mine", e, [](dsgd_strategy* s) { s->flags = 2; }); }},
      {"dsgd_strategy_register", "no function", kInvalid, "'owner' is NULL",
       [](W w, E e) { return with_strategy(w, "mine", e, [](dsgd_strategy* s) { s->owner = nullptr; }); }},
  };
}

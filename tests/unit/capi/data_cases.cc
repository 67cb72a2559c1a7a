// Objects and data-set shards.
#include "tests/unit/capi/bad_input.h"

namespace {
const int64_t kShape[] = {4};
}

std::vector<BadCall> data_cases() {
  using W = World&;
  using E = dsgd_error**;
  constexpr int64_t kInvalid = DSGD_ERR_INVALID_ARGUMENT, kClosed = DSGD_ERR_CLOSED;
  return {
      {"dsgd_object_put", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_object_put(nullptr, "x", "data", 4, -1, nullptr, 0, nullptr, nullptr, e); }},
      {"dsgd_object_put", "NULL name", kInvalid, "'name' is NULL",
       [](W w, E e) {
         return dsgd_object_put(w.running.session, nullptr, "data", 4, -1, nullptr, 0, nullptr, nullptr, e);
       }},
      {"dsgd_object_put",
       "empty name",
       kInvalid,
       {"'name' is an empty string", "give a name"},
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "", "data", 4, -1, nullptr, 0, nullptr, nullptr, e);
       }},
      {"dsgd_object_put", "NULL data", kInvalid, "'data' is NULL",
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "x", nullptr, 4, -1, nullptr, 0, nullptr, nullptr, e);
       }},
      {"dsgd_object_put",
       "too large",
       DSGD_ERR_LIMIT,
       {"'x' has 1073741825 bytes", "at most 1 GiB"},
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "x", "data", (size_t{1} << 30) + 1, -1, nullptr, 0,
                                nullptr, nullptr, e);
       }},
      {"dsgd_object_put",
       "name taken",
       DSGD_ERR_EXISTS,
       {"'name'", "choose another name"},
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "name", "other", 5, -1, nullptr, 0, nullptr, nullptr, e);
       }},
      {"dsgd_object_put", "closed", kClosed, "closed",
       [](W w, E e) {
         return dsgd_object_put(w.closed.session, "x", "data", 4, -1, nullptr, 0, nullptr, nullptr, e);
       }},
      {"dsgd_object_put",
       "unknown dtype",
       kInvalid,
       {"'x'", "dtype 99 is unknown", "enum dsgd_dtype"},
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "x", "data", 4, 99, nullptr, 0, nullptr, nullptr, e);
       }},
      {"dsgd_object_put", "NULL shape", kInvalid, "'shape' is NULL",
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "x", "data", 4, DSGD_UINT8, nullptr, 1, nullptr, nullptr,
                                e);
       }},
      {"dsgd_object_put",
       "too many dimensions",
       kInvalid,
       {"ndim is 65", "at most 64"},
       [](W w, E e) {
         const std::vector<int64_t> shape(65, 1);
         return dsgd_object_put(w.running.session, "x", "data", 1, DSGD_UINT8, shape.data(), shape.size(),
                                nullptr, nullptr, e);
       }},
      {"dsgd_object_put",
       "shape without dtype",
       kInvalid,
       {"'x'", "shape but no dtype"},
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "x", "data", 4, -1, kShape, 1, nullptr, nullptr, e);
       }},
      {"dsgd_object_put",
       "not the size of the array",
       kInvalid,
       {"'x'", "4 bytes", "float32 [4] has 16"},
       [](W w, E e) {
         return dsgd_object_put(w.running.session, "x", "data", 4, DSGD_FLOAT32, kShape, 1, nullptr, nullptr,
                                e);
       }},
      {"dsgd_object_put",
       "negative dimension",
       kInvalid,
       {"'x'", "dimension -1 is negative"},
       [](W w, E e) {
         const int64_t shape = -1;
         return dsgd_object_put(w.running.session, "x", "data", 4, DSGD_UINT8, &shape, 1, nullptr, nullptr,
                                e);
       }},
      {"dsgd_object_put",
       "sizes that overflow",
       kInvalid,
       {"'x'", "0 bytes", "uint8 [4611686018427387904, 4] has more than 2^64"},
       [](W w, E e) {
         const int64_t shape[] = {int64_t{1} << 62, 4};
         return dsgd_object_put(w.running.session, "x", nullptr, 0, DSGD_UINT8, shape, 2, nullptr, nullptr,
                                e);
       }},
      {"dsgd_object_delete", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_object_delete(nullptr, "x", nullptr, nullptr, e); }},
      {"dsgd_object_delete", "NULL name", kInvalid, "'name' is NULL",
       [](W w, E e) { return dsgd_object_delete(w.running.session, nullptr, nullptr, nullptr, e); }},
      {"dsgd_object_delete",
       "empty name",
       kInvalid,
       {"'name' is an empty string", "give a name"},
       [](W w, E e) { return dsgd_object_delete(w.running.session, "", nullptr, nullptr, e); }},
      {"dsgd_object_delete",
       "not put",
       DSGD_ERR_NOT_FOUND,
       {"'missing'", "has not been put"},
       [](W w, E e) { return dsgd_object_delete(w.running.session, "missing", nullptr, nullptr, e); }},
      {"dsgd_object_delete", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_object_delete(w.closed.session, "x", nullptr, nullptr, e); }},
      {"dsgd_object_get", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) {
         dsgd_object* object = nullptr;
         return dsgd_object_get(nullptr, "name", nullptr, &object, nullptr, e);
       }},
      {"dsgd_object_get", "NULL name", kInvalid, "'name' is NULL",
       [](W w, E e) {
         dsgd_object* object = nullptr;
         return dsgd_object_get(w.running.session, nullptr, nullptr, &object, nullptr, e);
       }},
      {"dsgd_object_get",
       "empty name",
       kInvalid,
       {"'name' is an empty string", "give a name"},
       [](W w, E e) {
         dsgd_object* object = nullptr;
         return dsgd_object_get(w.running.session, "", nullptr, &object, nullptr, e);
       }},
      {"dsgd_object_get", "NULL object", kInvalid, "'object' is NULL",
       [](W w, E e) { return dsgd_object_get(w.running.session, "name", nullptr, nullptr, nullptr, e); }},
      {"dsgd_object_get",
       "object and op",
       kInvalid,
       {"both given", "dsgd_op_object"},
       [](W w, E e) {
         dsgd_object* object = nullptr;
         dsgd_op* op = nullptr;
         return dsgd_object_get(w.running.session, "name", nullptr, &object, &op, e);
       }},
      {"dsgd_object_get",
       "bad limit",
       kInvalid,
       {"timeout is -4 ms", "at least 1"},
       [](W w, E e) {
         dsgd_object* object = nullptr;
         const dsgd_op_options options = with_timeout(-4);
         return dsgd_object_get(w.running.session, "name", &options, &object, nullptr, e);
       }},
      {"dsgd_object_get",
       "nobody has put it",
       DSGD_ERR_TIMEOUT,
       {"'missing'", "within timeout = 1 ms", "dsgd_object_put"},
       [](W w, E e) {
         dsgd_object* object = nullptr;
         const dsgd_op_options options = with_timeout(1);
         return dsgd_object_get(w.running.session, "missing", &options, &object, nullptr, e);
       }},
      {"dsgd_object_get", "closed", kClosed, "closed",
       [](W w, E e) {
         dsgd_object* object = nullptr;
         return dsgd_object_get(w.closed.session, "name", nullptr, &object, nullptr, e);
       }},
      {"dsgd_object_data", "NULL", 1, nullptr, [](W, E) { return dsgd_object_data(nullptr) == nullptr; }},
      {"dsgd_object_nbytes", "NULL", 0, nullptr, [](W, E) { return dsgd_object_nbytes(nullptr); }},
      {"dsgd_object_dtype", "NULL", -1, nullptr, [](W, E) { return dsgd_object_dtype(nullptr); }},
      {"dsgd_object_ndim", "NULL", 0, nullptr, [](W, E) { return dsgd_object_ndim(nullptr); }},
      {"dsgd_object_shape", "NULL", 1, nullptr, [](W, E) { return dsgd_object_shape(nullptr) == nullptr; }},
      {"dsgd_object_free", "NULL", 0, nullptr, [](W, E) { return dsgd_object_free(nullptr), 0; }},
      {"dsgd_object_free", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_object_free(foreign<dsgd_object>(w.config)), 0; }},

      {"dsgd_shard_new", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) {
         dsgd_shard* shard = nullptr;
         return dsgd_shard_new(nullptr, 10, 0, 0, &shard, e);
       }},
      {"dsgd_shard_new", "NULL shard", kInvalid, "'shard' is NULL",
       [](W w, E e) { return dsgd_shard_new(w.running.session, 10, 0, 0, nullptr, e); }},
      {"dsgd_shard_new",
       "unknown flag",
       kInvalid,
       {"flags 4", "dsgd_shard_flag"},
       [](W w, E e) {
         dsgd_shard* shard = nullptr;
         return dsgd_shard_new(w.running.session, 10, 0, 4, &shard, e);
       }},
      {"dsgd_shard_new",
       "more samples than indices",
       kInvalid,
       {"samples is 18446744073709551615", "int64_t"},
       [](W w, E e) {
         dsgd_shard* shard = nullptr;
         return dsgd_shard_new(w.running.session, UINT64_MAX, 0, 0, &shard, e);
       }},
      {"dsgd_shard_new", "closed", kClosed, "closed",
       [](W w, E e) {
         dsgd_shard* shard = nullptr;
         return dsgd_shard_new(w.closed.session, 10, 0, 0, &shard, e);
       }},
      {"dsgd_shard_epoch", "NULL", kInvalid, "'shard' is NULL",
       [](W, E e) { return dsgd_shard_epoch(nullptr, 0, e); }},
      {"dsgd_shard_epoch", "foreign handle", kInvalid, "not a dsgd_shard",
       [](W w, E e) { return dsgd_shard_epoch(foreign<dsgd_shard>(w.config), 0, e); }},
      {"dsgd_shard_seek", "NULL", kInvalid, "'shard' is NULL",
       [](W, E e) { return dsgd_shard_seek(nullptr, 0, 0, e); }},
      {"dsgd_shard_seek",
       "beyond the epoch",
       kInvalid,
       {"position 18446744073709551615", "10 samples", "dsgd_shard_position"},
       [](W w, E e) { return dsgd_shard_seek(w.shard, 0, UINT64_MAX, e); }},
      {"dsgd_shard_position", "NULL", 0, nullptr,
       [](W, E) { return static_cast<int64_t>(dsgd_shard_position(nullptr)); }},
      {"dsgd_shard_current_epoch", "NULL", 0, nullptr,
       [](W, E) { return static_cast<int64_t>(dsgd_shard_current_epoch(nullptr)); }},
      {"dsgd_checkpoint_save", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_checkpoint_save(nullptr, "dir", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_save", "empty folder", kInvalid, "'folder' is an empty string",
       [](W w, E e) { return dsgd_checkpoint_save(w.running.session, "", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_save",
       "no folder",
       kInvalid,
       {"no folder is given", "checkpoint_dir"},
       [](W w, E e) { return dsgd_checkpoint_save(w.running.session, nullptr, nullptr, nullptr, e); }},
      {"dsgd_checkpoint_save", "before start", DSGD_ERR_STATE, "needs dsgd_start first",
       [](W w, E e) { return dsgd_checkpoint_save(w.fresh.session, "dir", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_save", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_checkpoint_save(w.closed.session, "dir", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_load", "NULL session", kInvalid, "'session' is NULL",
       [](W, E e) { return dsgd_checkpoint_load(nullptr, "dir", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_load", "empty folder", kInvalid, "'folder' is an empty string",
       [](W w, E e) { return dsgd_checkpoint_load(w.running.session, "", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_load", "no folder", kInvalid, "no folder is given",
       [](W w, E e) { return dsgd_checkpoint_load(w.running.session, nullptr, nullptr, nullptr, e); }},
      {"dsgd_checkpoint_load",
       "no such folder",
       DSGD_ERR_NOT_FOUND,
       {"cannot read the folder '/dsgd/none'", "ENOENT"},
       [](W w, E e) { return dsgd_checkpoint_load(w.running.session, "/dsgd/none", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_load", "before start", DSGD_ERR_STATE, "needs dsgd_start first",
       [](W w, E e) { return dsgd_checkpoint_load(w.fresh.session, "dir", nullptr, nullptr, e); }},
      {"dsgd_checkpoint_load", "closed", kClosed, "closed",
       [](W w, E e) { return dsgd_checkpoint_load(w.closed.session, "dir", nullptr, nullptr, e); }},
      {"dsgd_shard_next", "NULL shard", kInvalid, "'shard' is NULL",
       [](W, E e) {
         int64_t index = 0;
         size_t count = 0;
         return dsgd_shard_next(nullptr, &index, 1, &count, e);
       }},
      {"dsgd_shard_next", "NULL indices", kInvalid, "'indices' is NULL",
       [](W w, E e) {
         size_t count = 0;
         return dsgd_shard_next(w.shard, nullptr, 1, &count, e);
       }},
      {"dsgd_shard_next", "NULL count", kInvalid, "'count' is NULL",
       [](W w, E e) {
         int64_t index = 0;
         return dsgd_shard_next(w.shard, &index, 1, nullptr, e);
       }},
      {"dsgd_shard_next", "no room", kInvalid, "'max' is 0",
       [](W w, E e) {
         int64_t index = 0;
         size_t count = 0;
         return dsgd_shard_next(w.shard, &index, 0, &count, e);
       }},
      {"dsgd_shard_size", "NULL", 0, nullptr,
       [](W, E) { return static_cast<int64_t>(dsgd_shard_size(nullptr)); }},
      {"dsgd_shard_free", "NULL", 0, nullptr, [](W, E) { return dsgd_shard_free(nullptr), 0; }},
      {"dsgd_shard_free", "foreign handle", 0, nullptr,
       [](W w, E) { return dsgd_shard_free(foreign<dsgd_shard>(w.config)), 0; }},
  };
}

/* The conformance worker in C; README.md has the contract. Whatever fails without being expected ends the
 * process. */
#include <dsgd/dsgd.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMaxParameters = 16, kMaxReplicas = 8, kMaxWords = 8, kMaxList = 16, kMaxAsync = 16 };

typedef struct {
  char name[64];
  int32_t dtype;
  size_t count;
  int trained;
  dsgd_parameter* handle;
} parameter_entry;

typedef struct {
  void *value, *gradient;
} buffers;

/* A collective that was begun: its line is written when it has ended. */
typedef struct {
  int line;
  dsgd_op* op;
  void *send, *receive; /* receive is what is digested */
  size_t nbytes;
  int has_digest;
} begun;

static dsgd_config* config;
static dsgd_session* session;
static int32_t rank, size;
static parameter_entry parameters[kMaxParameters];
static size_t parameter_count;
static dsgd_replica* replicas[kMaxReplicas];
static size_t replica_count;
static buffers tensors[kMaxReplicas][kMaxParameters];
static FILE* out;
static int line_number;

static void die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "line %d: ", line_number);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  exit(1);
}

/* `error` is a pointer to where the call has put its error, since arguments are evaluated in any order. */
static void check(int32_t status, dsgd_error** error) {
  if (status < 0) die("%s: %s", dsgd_status_name(status), dsgd_error_message(*error));
}

/* ---- Numbers ---- */

static uint64_t pattern_number(uint64_t seed, uint64_t salt, uint64_t i) {
  uint64_t x = seed * 1000003u + salt + i * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  x = x ^ (x >> 31);
  return (x >> 33) % 17;
}

static void fill(void* data, int32_t dtype, size_t count, uint64_t seed, uint64_t salt) {
  for (size_t i = 0; i < count; ++i) {
    int64_t element = (int64_t)pattern_number(seed, salt, i) - 8;
    switch (dtype) {
      case DSGD_FLOAT32:
        ((float*)data)[i] = (float)element;
        break;
      case DSGD_FLOAT64:
        ((double*)data)[i] = (double)element;
        break;
      case DSGD_INT32:
        ((int32_t*)data)[i] = (int32_t)element;
        break;
      case DSGD_INT64:
        ((int64_t*)data)[i] = element;
        break;
      case DSGD_INT8:
        ((int8_t*)data)[i] = (int8_t)element;
        break;
      case DSGD_UINT64:
        ((uint64_t*)data)[i] = (uint64_t)(element + 8);
        break;
      default:
        ((uint8_t*)data)[i] = (uint8_t)(element + 8);
        break;
    }
  }
}

static uint64_t salt_of(size_t replica, size_t parameter) {
  return (uint64_t)rank * 10000 + (uint64_t)replica * 100 + parameter;
}

static const uint64_t kDigestStart = 0xcbf29ce484222325u;

static uint64_t digest(uint64_t h, const void* data, size_t nbytes) {
  for (size_t i = 0; i < nbytes; ++i) h = (h ^ ((const uint8_t*)data)[i]) * 0x100000001b3u;
  return h;
}

static void* new_buffer(size_t nbytes) {
  void* data = calloc(nbytes + 1, 1);
  if (data == NULL) die("no memory for %zu bytes", nbytes);
  return data;
}

/* ---- Words ---- */

static int32_t dtype_of(const char* word) {
  static const struct {
    const char* name;
    int32_t dtype;
  } kDtypes[] = {{"float32", DSGD_FLOAT32}, {"float64", DSGD_FLOAT64}, {"int32", DSGD_INT32},
                 {"int64", DSGD_INT64},     {"uint8", DSGD_UINT8},     {"int8", DSGD_INT8},
                 {"uint64", DSGD_UINT64}};
  for (size_t i = 0; i < sizeof kDtypes / sizeof *kDtypes; ++i) {
    if (strcmp(word, kDtypes[i].name) == 0) return kDtypes[i].dtype;
  }
  die("'%s' is no dtype", word);
  return -1;
}

static int32_t reduction_of(const char* word) {
  static const char* const names[] = {"sum", "min", "max", "prod", "mean"};
  for (int32_t i = 0; i < 5; ++i) {
    if (strcmp(word, names[i]) == 0) return i;
  }
  die("'%s' is no reduction", word);
  return -1;
}

static size_t list_of(const char* word, double* numbers) {
  size_t count = 0;
  if (strcmp(word, "-") == 0) return 0;
  for (const char* at = word; *at != '\0';) {
    char* end;
    if (count == kMaxList) die("list '%s' is too long", word);
    numbers[count++] = strtod(at, &end);
    at = *end == ',' ? end + 1 : end;
  }
  return count;
}

static uint64_t number_of(const char* word) { return strtoull(word, NULL, 10); }

static int is_me(const char* word) { return (int32_t)number_of(word) == rank; }

static size_t parameter_index(const char* name) {
  for (size_t i = 0; i < parameter_count; ++i) {
    if (strcmp(parameters[i].name, name) == 0) return i;
  }
  die("no parameter '%s'", name);
  return 0;
}

/* Returns the number of dimensions; `count` becomes the number of elements. */
static size_t shape_of(const char* word, int64_t* shape, size_t* count) {
  double numbers[kMaxList];
  const size_t ndim = list_of(word, numbers);
  *count = 1;
  for (size_t i = 0; i < ndim; ++i) {
    shape[i] = (int64_t)numbers[i];
    *count *= (size_t)shape[i];
  }
  return ndim;
}

/* ---- Operations; each returns a status, so that `try` can look at it ---- */

static int32_t add_parameter(char** word, dsgd_error** error) {
  int64_t shape[kMaxList];
  size_t count, ndim = shape_of(word[3], shape, &count);
  parameter_entry* entry = &parameters[parameter_count];
  int untrained = strcmp(word[4], "untrained") == 0;
  int32_t status = dsgd_parameter_add(session, word[1], dtype_of(word[2]), shape, ndim,
                                      untrained ? DSGD_UNTRAINED : 0, &entry->handle, error);
  if (status < 0) return status;
  if (parameter_count + 1 == kMaxParameters) die("too many parameters");
  snprintf(entry->name, sizeof entry->name, "%s", word[1]);
  entry->dtype = dtype_of(word[2]);
  entry->count = count;
  entry->trained = !untrained;
  ++parameter_count;
  return DSGD_OK;
}

static void take_buffers(int own) {
  dsgd_error* error = NULL;
  for (size_t r = 0; r < replica_count; ++r) {
    for (size_t p = 0; p < parameter_count; ++p) {
      const parameter_entry* entry = &parameters[p];
      buffers* b = &tensors[r][p];
      if (!own) {
        check(dsgd_alloc(replicas[r], entry->handle, &b->value, entry->trained ? &b->gradient : NULL, &error),
              &error);
        continue;
      }
      size_t nbytes = entry->count * dsgd_dtype_size(entry->dtype);
      b->value = new_buffer(nbytes);
      b->gradient = entry->trained ? new_buffer(nbytes) : NULL;
      check(dsgd_bind(replicas[r], entry->handle, b->value, nbytes, b->gradient, entry->trained ? nbytes : 0,
                      &error),
            &error);
    }
  }
}

static void fill_gradient(size_t r, size_t p, uint64_t seed) {
  fill(tensors[r][p].gradient, parameters[p].dtype, parameters[p].count, seed, salt_of(r, p));
}

static int32_t step(char** word, dsgd_error** error) {
  double weights[kMaxList];
  if (list_of(word[2], weights) != (size_t)size)
    die("'%s' is not one weight for each of %d ranks", word[2], size);
  uint64_t seed = number_of(word[1]);
  dsgd_step_result result;
  dsgd_step_result_init(&result, sizeof result);
  int32_t status;
  if (strcmp(word[0], "step") == 0) {
    for (size_t r = 0; r < replica_count; ++r) {
      for (size_t p = 0; p < parameter_count; ++p) {
        if (parameters[p].trained && tensors[r][p].gradient != NULL) fill_gradient(r, p, seed);
      }
    }
    status = dsgd_step(session, weights[rank], &result, error);
    if (status < 0) return status;
  } else {
    dsgd_op* op = NULL;
    status = dsgd_step_begin(session, weights[rank], NULL, &op, error);
    if (status < 0) return status;
    for (size_t r = replica_count; r-- > 0;) {
      for (size_t p = parameter_count; p-- > 0;) {
        if (!parameters[p].trained) continue;
        fill_gradient(r, p, seed);
        check(dsgd_gradient_ready(replicas[r], parameters[p].handle, NULL, error), error);
      }
    }
    status = dsgd_op_wait(op, -1, error);
    if (status == DSGD_OK) status = dsgd_op_step_result(op, &result, error);
    dsgd_op_free(op);
    if (status < 0) return status;
  }
  uint64_t bits;
  memcpy(&bits, &result.weight, sizeof bits);
  fprintf(out, "%d step=%" PRId64 " size=%d applied=%d all_done=%d stop=%d weight=%016" PRIx64 "\n",
          line_number, result.step, result.size, result.applied, result.all_done, result.stop, bits);
  return DSGD_OK;
}

static void write_tensors(int gradients) {
  uint64_t h = kDigestStart;
  for (size_t r = 0; r < replica_count; ++r) {
    for (size_t p = 0; p < parameter_count; ++p) {
      if (gradients && !parameters[p].trained) continue;
      h = digest(h, gradients ? tensors[r][p].gradient : tensors[r][p].value,
                 parameters[p].count * dsgd_dtype_size(parameters[p].dtype));
    }
  }
  fprintf(out, "%d digest=%016" PRIx64 "\n", line_number, h);
}

/* Begins a collective, if `async`, else runs it to its end. */
static int32_t collective(char** word, int async, begun* c, dsgd_error** error) {
  dsgd_op** op = async ? &c->op : NULL;
  memset(c, 0, sizeof *c);
  c->line = line_number;
  if (strcmp(word[0], "barrier") == 0) return dsgd_barrier(session, NULL, NULL, op, error);
  c->has_digest = 1;
  int32_t dtype = dtype_of(word[1]);
  size_t element = dsgd_dtype_size(dtype);
  double numbers[kMaxList];
  size_t counts[kMaxList], listed = list_of(word[2], numbers), total = 0;
  for (size_t i = 0; i < (size_t)size; ++i) total += counts[i] = (size_t)numbers[listed == 1 ? 0 : i];
  if (strcmp(word[0], "allreduce") == 0 || strcmp(word[0], "broadcast") == 0) {
    int reduce = word[0][0] == 'a';
    c->nbytes = counts[0] * element;
    c->receive = new_buffer(c->nbytes);
    fill(c->receive, dtype, counts[0], number_of(word[4]), (uint64_t)rank);
    if (reduce)
      return dsgd_allreduce(session, NULL, c->receive, c->receive, c->nbytes, dtype, reduction_of(word[3]),
                            NULL, op, error);
    return dsgd_broadcast(session, NULL, c->receive, c->nbytes, dtype, (int32_t)number_of(word[3]), NULL, op,
                          error);
  }
  int gather = strcmp(word[0], "allgather") == 0;
  size_t mine = counts[rank] * element, all = total * element;
  size_t send_nbytes = gather ? mine : all;
  c->nbytes = gather ? all : mine;
  c->send = new_buffer(send_nbytes);
  c->receive = new_buffer(c->nbytes);
  fill(c->send, dtype, send_nbytes / element, number_of(word[gather ? 3 : 4]), (uint64_t)rank);
  const size_t* uneven = listed == 1 ? NULL : counts;
  if (gather) {
    return dsgd_allgather(session, NULL, c->send, send_nbytes, c->receive, c->nbytes, uneven, dtype, NULL, op,
                          error);
  }
  return dsgd_reduce_scatter(session, NULL, c->send, send_nbytes, c->receive, c->nbytes, uneven, dtype,
                             reduction_of(word[3]), NULL, op, error);
}

static void finish(begun* c) {
  dsgd_error* error = NULL;
  if (c->op != NULL) check(dsgd_op_wait(c->op, -1, &error), &error);
  dsgd_op_free(c->op);
  if (c->has_digest)
    fprintf(out, "%d digest=%016" PRIx64 "\n", c->line, digest(kDigestStart, c->receive, c->nbytes));
  free(c->send);
  free(c->receive);
}

static int32_t get(const char* name, int32_t timeout_ms, dsgd_error** error) {
  dsgd_op* op = NULL;
  dsgd_object* object = NULL;
  int32_t status = dsgd_object_get(session, name, NULL, NULL, &op, error);
  if (status < 0) return status;
  status = dsgd_op_wait(op, timeout_ms, error);
  if (status == DSGD_OK) status = dsgd_op_object(op, &object, error);
  dsgd_op_abort(op, "not wanted any more", NULL);
  dsgd_op_free(op);
  if (status < 0) return status;
  size_t nbytes = dsgd_object_nbytes(object);
  fprintf(out, "%d nbytes=%zu digest=%016" PRIx64 "\n", line_number, nbytes,
          digest(kDigestStart, dsgd_object_data(object), nbytes));
  dsgd_object_free(object);
  return DSGD_OK;
}

static void put_array(char** word) {
  int64_t shape[kMaxList];
  size_t count, ndim = shape_of(word[4], shape, &count);
  dsgd_error* error = NULL;
  int32_t dtype = dtype_of(word[3]);
  size_t nbytes = count * dsgd_dtype_size(dtype);
  void* data = new_buffer(nbytes);
  fill(data, dtype, count, number_of(word[5]), 0);
  check(dsgd_object_put(session, word[2], data, nbytes, dtype, shape, ndim, NULL, NULL, &error), &error);
  free(data);
}

static void get_array(const char* name) {
  dsgd_error* error = NULL;
  dsgd_object* object = NULL;
  check(dsgd_object_get(session, name, NULL, &object, NULL, &error), &error);
  size_t ndim = dsgd_object_ndim(object);
  fprintf(out, "%d dtype=%d shape=%s", line_number, (int)dsgd_object_dtype(object), ndim == 0 ? "-" : "");
  for (size_t i = 0; i < ndim; ++i)
    fprintf(out, "%s%lld", i > 0 ? "," : "", (long long)dsgd_object_shape(object)[i]);
  fprintf(out, " digest=%016" PRIx64 "\n",
          digest(kDigestStart, dsgd_object_data(object), dsgd_object_nbytes(object)));
  dsgd_object_free(object);
}

static void read_shard(char** word) {
  dsgd_error* error = NULL;
  dsgd_shard* shard = NULL;
  check(dsgd_shard_new(session, number_of(word[1]), number_of(word[2]), (uint32_t)number_of(word[3]), &shard,
                       &error),
        &error);
  check(dsgd_shard_epoch(shard, number_of(word[4]), &error), &error);
  size_t max = (size_t)number_of(word[5]), count = 0;
  int64_t* indices = (int64_t*)new_buffer(max * sizeof *indices);
  uint64_t h = kDigestStart;
  do {
    check(dsgd_shard_next(shard, indices, max, &count, &error), &error);
    h = digest(h, indices, count * sizeof *indices);
  } while (count > 0);
  fprintf(out, "%d size=%" PRIu64 " digest=%016" PRIx64 "\n", line_number, dsgd_shard_size(shard), h);
  free(indices);
  dsgd_shard_free(shard);
}

/* Operations that `try` may precede, and the rest. `options` is the text after the second word. */
static int32_t run(char** word, const char* options, int trying, dsgd_error** error) {
  const char* operation = word[0];
  const char* given = options[0] != '\0' ? options : NULL;
  dsgd_error* fatal = NULL;
  if (strcmp(operation, "config") == 0) return dsgd_config_set(config, word[1], options, error);
  if (strcmp(operation, "parameter") == 0) return add_parameter(word, error);
  if (strcmp(operation, "parameter_set") == 0) {
    return dsgd_parameter_set(parameters[parameter_index(word[1])].handle, given, error);
  }
  if (strcmp(operation, "optimizer") == 0) return dsgd_optimizer_set(session, word[1], given, error);
  if (strcmp(operation, "strategy") == 0)
    return dsgd_strategy_set(session, word[1], given, NULL, NULL, error);
  if (strcmp(operation, "start") == 0) return dsgd_start(session, NULL, NULL, error);
  if (strcmp(operation, "step") == 0 || strcmp(operation, "overlap") == 0) return step(word, error);
  if (strcmp(operation, "get") == 0) return get(word[1], trying ? 0 : -1, error);
  if (strcmp(operation, "allreduce") == 0 || strcmp(operation, "barrier") == 0 ||
      strcmp(operation, "broadcast") == 0 || strcmp(operation, "allgather") == 0 ||
      strcmp(operation, "reduce_scatter") == 0) {
    begun c;
    int32_t status = collective(word, 0, &c, error);
    if (status == DSGD_OK) finish(&c);
    return status;
  }
  if (strcmp(operation, "init") == 0) {
    check(dsgd_init(config, &session, &fatal), &fatal);
    rank = dsgd_rank(session);
    size = dsgd_size(session);
    fprintf(out, "%d rank=%d size=%d\n", line_number, rank, size);
  } else if (strcmp(operation, "replica") == 0) {
    if (replica_count == kMaxReplicas) die("too many replicas");
    check(dsgd_replica_add(session, "cpu", &replicas[replica_count++], &fatal), &fatal);
  } else if (strcmp(operation, "alloc") == 0 || strcmp(operation, "bind") == 0) {
    take_buffers(operation[0] == 'b');
  } else if (strcmp(operation, "fill") == 0) {
    for (size_t r = 0; r < replica_count; ++r) {
      for (size_t p = 0; p < parameter_count; ++p) {
        fill(tensors[r][p].value, parameters[p].dtype, parameters[p].count, number_of(word[1]),
             1000000 + salt_of(r, p));
      }
    }
  } else if (strcmp(operation, "rate") == 0) {
    check(dsgd_learning_rate_set(session, strtod(word[1], NULL), &fatal), &fatal);
  } else if (strcmp(operation, "replica_weight") == 0) {
    if (is_me(word[1]))
      check(dsgd_replica_weight(replicas[number_of(word[2])], strtod(word[3], NULL), &fatal), &fatal);
  } else if (strcmp(operation, "absent") == 0) {
    for (size_t r = 0; is_me(word[1]) && r < replica_count; ++r) {
      check(dsgd_gradient_absent(replicas[r], parameters[parameter_index(word[2])].handle, &fatal), &fatal);
    }
  } else if (strcmp(operation, "stop") == 0) {
    if (is_me(word[1])) check(dsgd_stop_request(session, &fatal), &fatal);
  } else if (strcmp(operation, "values") == 0 || strcmp(operation, "gradients") == 0) {
    write_tensors(operation[0] == 'g');
  } else if (strcmp(operation, "digest") == 0) {
    uint64_t h = 0;
    check(dsgd_digest(session, &h, &fatal), &fatal);
    fprintf(out, "%d digest=%016" PRIx64 "\n", line_number, h);
  } else if (strcmp(operation, "put") == 0) {
    if (is_me(word[1])) {
      size_t nbytes = (size_t)number_of(word[3]);
      void* data = new_buffer(nbytes);
      fill(data, DSGD_UINT8, nbytes, number_of(word[4]), 0);
      check(dsgd_object_put(session, word[2], data, nbytes, -1, NULL, 0, NULL, NULL, &fatal), &fatal);
      free(data);
    }
  } else if (strcmp(operation, "put_array") == 0) {
    if (is_me(word[1])) put_array(word);
  } else if (strcmp(operation, "get_array") == 0) {
    get_array(word[1]);
  } else if (strcmp(operation, "shard") == 0) {
    read_shard(word);
  } else if (strcmp(operation, "close") == 0) {
    check(dsgd_close(session, -1, &fatal), &fatal);
  } else {
    die("unknown operation '%s'", operation);
  }
  return DSGD_OK;
}

/* Splits at single spaces; *options points behind the second word in `copy`, which stays unsplit. */
static void split(char* text, char** word, const char** options, char* copy) {
  strcpy(copy, text);
  char* space = strchr(copy, ' ');
  space = space != NULL ? strchr(space + 1, ' ') : NULL;
  *options = space != NULL ? space + 1 : "";
  for (int i = 0; i < kMaxWords; ++i) word[i] = (char*)"";
  int count = 0;
  for (char* at = strtok(text, " "); at != NULL && count < kMaxWords; at = strtok(NULL, " "))
    word[count++] = at;
}

int main(int argc, char** argv) {
  if (argc != 3) die("usage: %s SCRIPT RESULT", argv[0]);
  FILE* script = fopen(argv[1], "r");
  out = fopen(argv[2], "w");
  if (script == NULL || out == NULL) die("cannot open %s or %s", argv[1], argv[2]);
  config = dsgd_config_new();
  static begun waiting[kMaxAsync];
  size_t begun_count = 0, to_begin = 0;
  char text[1024], copy[1024], *word[kMaxWords];
  const char* options;
  while (fgets(text, sizeof text, script) != NULL) {
    ++line_number;
    text[strcspn(text, "\n")] = '\0';
    if (text[0] == '\0' || text[0] == '#') continue;
    dsgd_error* error = NULL;
    if (to_begin > 0) {
      split(text, word, &options, copy);
      check(collective(word, 1, &waiting[begun_count++], &error), &error);
      if (--to_begin > 0) continue;
      for (size_t i = 0; i < begun_count; ++i) finish(&waiting[i]);
      begun_count = 0;
    } else if (strncmp(text, "async ", 6) == 0) {
      to_begin = (size_t)number_of(text + 6);
      if (to_begin > kMaxAsync) die("too many operations at once");
    } else if (strncmp(text, "try ", 4) == 0) {
      split(text + 4, word, &options, copy);
      int32_t status = run(word, options, 1, &error);
      if (status >= 0) die("'%s' was expected to fail", word[0]);
      fprintf(out, "%d error=%d\n", line_number, status);
      dsgd_error_free(error);
    } else {
      split(text, word, &options, copy);
      check(run(word, options, 0, &error), &error);
    }
  }
  fclose(script);
  dsgd_session_free(session);
  dsgd_config_free(config);
  if (fclose(out) != 0) die("writing %s failed", argv[2]);
  return 0;
}

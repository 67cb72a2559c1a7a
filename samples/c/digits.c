/* Trains a small network on handwritten digits, together with any number of other workers in any language.
 *
 * Copy this file to begin a trainer of your own. The code for dsgd is in main(); the network (64 inputs, 128
 * hidden units with ReLU, 10 classes, softmax cross-entropy) is above it. Compile it against an installed
 * dsgd (it is C11, which compilers take by default):
 *
 *   cc -O2 digits.c $(pkg-config --cflags --libs dsgd) -lm -o digits
 *
 * With dsgd in a PREFIX of your own, set PKG_CONFIG_PATH=PREFIX/lib/pkgconfig and add -Wl,-rpath,PREFIX/lib.
 * Run it by itself or under `dsgd run`:
 *
 *   digits --data digits.csv --epochs 40
 *   dsgd run -n 4 -- digits --data digits.csv --epochs 40
 *
 * With checkpoints it goes on after a crash, here by itself:
 *
 *   dsgd run -n 4 --restarts 3 -- digits --data digits.csv --checkpoint checkpoints
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dsgd/dsgd.h>

enum { kInputs = 64, kHidden = 128, kClasses = 10, kMaxRows = 2000, kMaxBatch = 256 };

/* ---- Data: every fifth row is for the test, the others for training. */

typedef struct {
  float pixels[kMaxRows][kInputs];
  int label[kMaxRows];
  int rows;
} Data;

static Data train, test;

static void read_data(const char* path) {
  FILE* file = fopen(path, "r");
  if (!file) {
    fprintf(stderr, "digits: cannot read %s\n", path);
    exit(1);
  }
  for (int row = 0, value; fscanf(file, "%d", &value) == 1; ++row) {
    Data* set = row % 5 == 0 ? &test : &train;
    if (set->rows == kMaxRows) break;
    for (int i = 0; i < kInputs; ++i) {
      set->pixels[set->rows][i] = (float)value / 16.0f;
      if (fscanf(file, ",%d", &value) != 1) {
        fprintf(stderr, "digits: row %d of %s is too short\n", row + 1, path);
        exit(1);
      }
    }
    set->label[set->rows++] = value; /* the last column */
  }
  fclose(file);
}

/* ---- Network. Values and gradients lie in buffers of dsgd. */

typedef struct {
  float *w1, *b1, *w2, *b2; /* [64][128], [128], [128][10], [10] */
} Tensors;

static void initialise(Tensors* value, unsigned seed) { /* uniform, He et al. 2015 */
  srand(seed);
  const float bound1 = sqrtf(6.0f / kInputs), bound2 = sqrtf(6.0f / kHidden);
  for (int i = 0; i < kInputs * kHidden; ++i)
    value->w1[i] = bound1 * (2.0f * (float)rand() / (float)RAND_MAX - 1.0f);
  for (int i = 0; i < kHidden * kClasses; ++i)
    value->w2[i] = bound2 * (2.0f * (float)rand() / (float)RAND_MAX - 1.0f);
}

/* Class probabilities of one image; `hidden` gets the activations. */
static void forward(const Tensors* value, const float* pixels, float* hidden, float* probability) {
  memcpy(hidden, value->b1, kHidden * sizeof *hidden);
  for (int i = 0; i < kInputs; ++i) {
    if (pixels[i] == 0.0f) continue;
    for (int j = 0; j < kHidden; ++j) hidden[j] += pixels[i] * value->w1[i * kHidden + j];
  }
  float largest = -INFINITY, sum = 0.0f;
  memcpy(probability, value->b2, kClasses * sizeof *probability);
  for (int j = 0; j < kHidden; ++j) {
    if (hidden[j] < 0.0f) hidden[j] = 0.0f;
    for (int c = 0; c < kClasses; ++c) probability[c] += hidden[j] * value->w2[j * kClasses + c];
  }
  for (int c = 0; c < kClasses; ++c) largest = fmaxf(largest, probability[c]);
  for (int c = 0; c < kClasses; ++c) sum += probability[c] = expf(probability[c] - largest);
  for (int c = 0; c < kClasses; ++c) probability[c] /= sum;
}

/* Mean gradient of a batch; returns the sum of the losses. */
static double backward(const Tensors* value, Tensors* gradient, const int64_t* rows, size_t count) {
  memset(gradient->w1, 0, kInputs * kHidden * sizeof(float));
  memset(gradient->b1, 0, kHidden * sizeof(float));
  memset(gradient->w2, 0, kHidden * kClasses * sizeof(float));
  memset(gradient->b2, 0, kClasses * sizeof(float));
  double loss = 0.0;
  for (size_t n = 0; n < count; ++n) {
    float hidden[kHidden], error[kClasses];
    const float* pixels = train.pixels[rows[n]];
    const int label = train.label[rows[n]];
    forward(value, pixels, hidden, error);
    loss -= log(fmax((double)error[label], 1e-30));
    error[label] -= 1.0f;
    for (int c = 0; c < kClasses; ++c) gradient->b2[c] += error[c] /= (float)count;
    for (int j = 0; j < kHidden; ++j) {
      if (hidden[j] == 0.0f) continue;
      float back = 0.0f;
      for (int c = 0; c < kClasses; ++c) {
        gradient->w2[j * kClasses + c] += hidden[j] * error[c];
        back += value->w2[j * kClasses + c] * error[c];
      }
      gradient->b1[j] += back;
      for (int i = 0; i < kInputs; ++i) gradient->w1[i * kHidden + j] += pixels[i] * back;
    }
  }
  return loss;
}

static double test_accuracy(const Tensors* value) {
  int right = 0;
  for (int n = 0; n < test.rows; ++n) {
    float hidden[kHidden], probability[kClasses];
    forward(value, test.pixels[n], hidden, probability);
    int best = 0;
    for (int c = 1; c < kClasses; ++c) best = probability[c] > probability[best] ? c : best;
    right += best == test.label[n];
  }
  return 100.0 * right / test.rows;
}

/* ---- dsgd */

/* Takes the error's address, since arguments are evaluated in any order and the call among them sets it. */
static void check(int32_t status, dsgd_error** error) {
  if (status == DSGD_OK) return;
  fprintf(stderr, "digits: %s\n", dsgd_error_message(*error));
  dsgd_error_free(*error);
  exit(1);
}

static double now(void) {
  struct timespec time;
  timespec_get(&time, TIME_UTC);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static const char* option(int argc, char** argv, const char* name, const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return otherwise;
}

static void show_warning(const dsgd_log_record* record, void* user) {
  (void)user;
  if (dsgd_log_record_level(record) <= DSGD_LOG_WARNING)
    fprintf(stderr, "digits: %s\n", dsgd_log_record_message(record));
}

int main(int argc, char** argv) {
  static const char kUsage[] =
      "digits --data FILE [--epochs N] [--batch N] [--seed N] [--optimizer NAME] [--optimizer-options WORDS] "
      "[--checkpoint DIR]";
  if (argc > 1 && strcmp(argv[1], "--help") == 0) {
    puts(kUsage);
    return 0;
  }
  for (int i = 1; i < argc; i += 2) {
    char word[64];
    snprintf(word, sizeof word, "%s ", argv[i]);
    if (strncmp(argv[i], "--", 2) != 0 || !strstr(kUsage, word) || i + 1 == argc) {
      fprintf(stderr, "digits: unknown option '%s', or its value is missing; usage: %s\n", argv[i], kUsage);
      return 2;
    }
  }
  read_data(option(argc, argv, "--data", "digits.csv"));
  const int epochs = atoi(option(argc, argv, "--epochs", "40"));
  const size_t batch = (size_t)atoi(option(argc, argv, "--batch", "16"));
  const unsigned seed = (unsigned)atoi(option(argc, argv, "--seed", "1"));
  if (batch < 1 || batch > kMaxBatch || epochs < 1) {
    fprintf(stderr, "digits: --batch is 1 to %d, --epochs at least 1\n", kMaxBatch);
    return 2;
  }

  dsgd_error* error = NULL;
  dsgd_config* config = dsgd_config_new(); /* DSGD_* variables, for example from `dsgd run` */
  check(dsgd_config_log_hook(config, show_warning, NULL, &error), &error);
  const char* folder = option(argc, argv, "--checkpoint", NULL);
  if (folder) { /* dsgd saves by itself; DSGD_CHECKPOINT_INTERVAL changes how often */
    check(dsgd_config_set(config, "checkpoint_dir", folder, &error), &error);
    if (strcmp(dsgd_config_value(config, "checkpoint_interval"), "0") == 0)
      check(dsgd_config_set(config, "checkpoint_interval", "100", &error), &error);
  }
  dsgd_session* session;
  check(dsgd_init(config, &session, &error), &error);

  /* The model: four tensors, one copy of them on this worker's CPU. */
  static const struct {
    const char* name;
    int64_t shape[2];
    size_t ndim;
  } kTensors[] = {{"hidden.weight", {kInputs, kHidden}, 2},
                  {"hidden.bias", {kHidden}, 1},
                  {"output.weight", {kHidden, kClasses}, 2},
                  {"output.bias", {kClasses}, 1}};
  Tensors value, gradient;
  float** values[] = {&value.w1, &value.b1, &value.w2, &value.b2};
  float** gradients[] = {&gradient.w1, &gradient.b1, &gradient.w2, &gradient.b2};
  dsgd_replica* replica;
  check(dsgd_replica_add(session, "cpu", &replica, &error), &error);
  for (int i = 0; i < 4; ++i) {
    dsgd_parameter* parameter;
    void *data, *slope;
    check(dsgd_parameter_add(session, kTensors[i].name, DSGD_FLOAT32, kTensors[i].shape, kTensors[i].ndim, 0,
                             &parameter, &error),
          &error);
    check(dsgd_alloc(replica, parameter, &data, &slope, &error), &error);
    *values[i] = data;
    *gradients[i] = slope;
  }
  check(dsgd_optimizer_set(session, option(argc, argv, "--optimizer", "sgd"),
                           option(argc, argv, "--optimizer-options", "lr=0.1 momentum=0.9"), &error),
        &error);
  initialise(&value, seed);
  check(dsgd_start(session, NULL, NULL, &error), &error); /* from here on all workers hold rank 0's values */

  dsgd_shard* shard;
  check(dsgd_shard_new(session, (uint64_t)train.rows, seed, 0, &shard, &error), &error);
  if (folder) { /* go on from the newest checkpoint, also with another number of workers */
    int32_t status = DSGD_ERR_VIEW_CHANGED;
    while (status == DSGD_ERR_VIEW_CHANGED) { /* a worker has joined or was lost meanwhile: all load again */
      dsgd_error_free(error);
      error = NULL;
      status = dsgd_checkpoint_load(session, NULL, NULL, NULL, &error);
    }
    if (status == DSGD_ERR_NOT_FOUND) {
      dsgd_error_free(error);
      error = NULL;
    } else {
      check(status, &error);
    }
  }
  /* Epochs count from 1. A loaded checkpoint, or a running job that this worker has joined, is in epoch 1 or
   * later; a new job is in epoch 0. */
  const int reached = (int)dsgd_shard_current_epoch(shard), first = reached > 0 ? reached : 1;
  for (int epoch = first; epoch <= epochs; ++epoch) {
    if (dsgd_shard_current_epoch(shard) != (uint64_t)epoch) /* else it goes on within the epoch */
      check(dsgd_shard_epoch(shard, (uint64_t)epoch, &error), &error);
    const double began = now();
    double loss = 0.0;
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    while (!result.all_done) { /* a worker that has no data left goes on with weight 0 until nobody has */
      int64_t rows[kMaxBatch];
      size_t count;
      check(dsgd_shard_next(shard, rows, batch, &count, &error), &error);
      if (count > 0) loss += backward(&value, &gradient, rows, count);
      check(dsgd_step(session, (double)count, &result, &error), &error);
    }
    const double seconds = now() - began, samples = (double)dsgd_shard_size(shard);
    printf("{\"epoch\": %d, \"loss\": %.6f, \"accuracy\": %.4f, \"samples_per_second\": %.1f}\n", epoch,
           loss / samples, test_accuracy(&value), samples / seconds);
    fflush(stdout);
  }

  uint64_t digest;
  check(dsgd_digest(session, &digest, &error), &error);
  printf("{\"done\": true, \"rank\": %d, \"language\": \"c\", \"accuracy\": %.4f, \"digest\": \"%016llx\"}\n",
         (int)dsgd_rank(session), test_accuracy(&value), (unsigned long long)digest);
  dsgd_shard_free(shard);
  dsgd_config_free(config);
  return dsgd_finalize(session) ? 1 : 0;
}

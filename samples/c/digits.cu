// Trains a small network on handwritten digits with replicas on NVIDIA GPUs, together with any number of
// other workers in any language, on GPUs or not.
//
// Copy this file to begin a trainer of your own. The code for dsgd is in main() and in step(); the network
// (64 inputs, 128 hidden units with ReLU, 10 classes, softmax cross-entropy) is above them. Compile it with
// CUDA 12.1 or later against an installed dsgd:
//
//   nvcc -O2 digits.cu $(pkg-config --cflags --libs dsgd) -o digits
//
// After `.ci/prepare build core cuda`, nvcc is in build/venv/lib/python3*/site-packages/nvidia/cu13/bin. With
// dsgd in a PREFIX of your own, set PKG_CONFIG_PATH=PREFIX/lib/pkgconfig and add -Xlinker -rpath=PREFIX/lib.
// Run it by itself or under `dsgd run`; each entry of --device is a replica, and a GPU may have several. In
// the second command two workers run the trainer digits.c, compiled as digits_cpu:
//
//   ./digits --data samples/data/digits.csv --device cuda:0
//   dsgd run -n 1 -- ./digits --data samples/data/digits.csv --device cuda:0,cuda:0
//     : -n 2 -- ./digits_cpu --data samples/data/digits.csv
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <dsgd/dsgd.h>

constexpr int kInputs = 64, kHidden = 128, kClasses = 10, kMaxBatch = 256;

// ---- Data: every fifth row is for the test, the others for training.

struct Data {
  std::vector<float> pixels;  // [images][64]
  std::vector<int> label;     // [images]
  int images() const { return static_cast<int>(label.size()); }
};

static Data train, test;

static void read_data(const char* path) {
  FILE* file = fopen(path, "r");
  if (!file) {
    fprintf(stderr, "digits: cannot read %s\n", path);
    exit(1);
  }
  for (int row = 0, value; fscanf(file, "%d", &value) == 1; ++row) {
    Data& set = row % 5 == 0 ? test : train;
    for (int i = 0; i < kInputs; ++i) {
      set.pixels.push_back(static_cast<float>(value) / 16.0f);
      if (fscanf(file, ",%d", &value) != 1) {
        fprintf(stderr, "digits: row %d of %s is too short\n", row + 1, path);
        exit(1);
      }
    }
    set.label.push_back(value);  // the last column
  }
  fclose(file);
}

// ---- Network. Each struct below is what one thread of a kernel does: element `index` of an array. Threads
// write nothing that another one writes, and add up in a fixed order, so that the same run gives the same
// bits.

struct Tensors {
  float *w1, *b1, *w2, *b2;  // [64][128], [128], [128][10], [10]
};

// One pass over `count` images: what it reads, and the room for what it computes.
struct Pass {
  Tensors value, gradient;
  const float* pixels;  // of all images
  const int* label;
  const int64_t* rows;  // which of them this pass is about
  int count;
  float *hidden, *back;  // [count][128]: activations, derivatives by what goes into ReLU
  float* error;          // [count][10]: derivatives by the scores
  float* loss;           // [count]
  int* right;            // [count]: 1 where the most probable class is the label
};

struct Hidden {  // count * 128 elements
  Pass p;
  __host__ __device__ void operator()(int index) const {
    const int n = index / kHidden, j = index % kHidden;
    const float* pixels = p.pixels + p.rows[n] * kInputs;
    float sum = p.value.b1[j];
    for (int i = 0; i < kInputs; ++i) sum += pixels[i] * p.value.w1[i * kHidden + j];
    p.hidden[index] = sum > 0.0f ? sum : 0.0f;
  }
};

struct Classes {  // count elements
  Pass p;
  __host__ __device__ void operator()(int n) const {
    const float* hidden = p.hidden + n * kHidden;
    const int label = p.label[p.rows[n]];
    float* error = p.error + n * kClasses;
    float sum = 0.0f;
    int best = 0;
    for (int c = 0; c < kClasses; ++c) {
      float score = p.value.b2[c];
      for (int j = 0; j < kHidden; ++j) score += hidden[j] * p.value.w2[j * kClasses + c];
      error[c] = score;
      if (score > error[best]) best = c;
    }
    const float largest = error[best];
    for (int c = 0; c < kClasses; ++c) sum += error[c] = expf(error[c] - largest);
    for (int c = 0; c < kClasses; ++c) error[c] /= sum;  // probabilities
    p.right[n] = best == label;
    p.loss[n] = -logf(fmaxf(error[label], 1e-30f));
    error[label] -= 1.0f;
    // The loss is the mean of the batch.
    for (int c = 0; c < kClasses; ++c) error[c] /= static_cast<float>(p.count);
  }
};

struct OutputGradient {  // 128 * 10 elements of w2, then 10 of b2
  Pass p;
  __host__ __device__ void operator()(int index) const {
    const int j = index / kClasses, c = index % kClasses;
    float sum = 0.0f;
    for (int n = 0; n < p.count; ++n)
      sum += (j < kHidden ? p.hidden[n * kHidden + j] : 1.0f) * p.error[n * kClasses + c];
    (j < kHidden ? p.gradient.w2 + index : p.gradient.b2 + c)[0] = sum;
  }
};

struct Back {  // count * 128 elements
  Pass p;
  __host__ __device__ void operator()(int index) const {
    const int n = index / kHidden, j = index % kHidden;
    float sum = 0.0f;
    for (int c = 0; c < kClasses; ++c) sum += p.value.w2[j * kClasses + c] * p.error[n * kClasses + c];
    p.back[index] = p.hidden[index] > 0.0f ? sum : 0.0f;
  }
};

struct HiddenGradient {  // 64 * 128 elements of w1, then 128 of b1
  Pass p;
  __host__ __device__ void operator()(int index) const {
    const int i = index / kHidden, j = index % kHidden;
    float sum = 0.0f;
    for (int n = 0; n < p.count; ++n)
      sum += (i < kInputs ? p.pixels[p.rows[n] * kInputs + i] : 1.0f) * p.back[n * kHidden + j];
    (i < kInputs ? p.gradient.w1 + index : p.gradient.b1 + j)[0] = sum;
  }
};

struct AddLosses {  // one element
  Pass p;
  double* total;
  __host__ __device__ void operator()(int) const {
    for (int n = 0; n < p.count; ++n) *total += p.loss[n];
  }
};

// Uniform, He et al. 2015.
static void initialise(std::vector<float>& w1, std::vector<float>& w2, unsigned seed) {
  srand(seed);
  const float bound1 = sqrtf(6.0f / kInputs), bound2 = sqrtf(6.0f / kHidden);
  for (float& w : w1) w = bound1 * (2.0f * static_cast<float>(rand()) / static_cast<float>(RAND_MAX) - 1.0f);
  for (float& w : w2) w = bound2 * (2.0f * static_cast<float>(rand()) / static_cast<float>(RAND_MAX) - 1.0f);
}

// ---- CUDA

static void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "digits: CUDA: %s (%s)\n", cudaGetErrorString(error), cudaGetErrorName(error));
  exit(1);
}

template <typename Element>
__global__ void for_each(int count, Element element) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index < count) element(index);
}

template <typename Element>
static void enter(cudaStream_t stream, int count, const Element& element) {
  if (count == 0) return;
  for_each<<<(count + 127) / 128, 128, 0, stream>>>(count, element);
  check(cudaGetLastError());
}

// A copy of the model on a GPU. All its work is enqueued in a stream of its own, which does not wait for the
// default stream. The default stream does not wait for it either.
struct Replica {
  dsgd_replica* handle;
  int gpu;
  cudaStream_t stream;
  Pass train, test;
  int64_t* order;  // this worker's images of the epoch
  double* loss;    // their sum so far
};

static std::vector<void*> allocations;  // freed at the end

template <typename T>
static T* allocate(size_t count) {
  void* data;
  check(cudaMalloc(&data, std::max<size_t>(count, 1) * sizeof(T)));
  allocations.push_back(data);
  return static_cast<T*>(data);
}

// The host's memory may be used again when these return.
template <typename T>
static void upload(const Replica& replica, T* to, const std::vector<T>& from) {
  check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, replica.stream));
}
template <typename T>
static std::vector<T> download(const Replica& replica, const T* from, size_t count) {
  std::vector<T> to(count);
  check(cudaMemcpyAsync(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, replica.stream));
  check(cudaStreamSynchronize(replica.stream));
  return to;
}

static Pass new_pass(const Replica& replica, const Data& data, int most) {
  float* pixels = allocate<float>(data.pixels.size());
  int* label = allocate<int>(data.label.size());
  upload(replica, pixels, data.pixels);
  upload(replica, label, data.label);
  Pass pass = {};
  pass.pixels = pixels;
  pass.label = label;
  pass.hidden = allocate<float>(most * kHidden);
  pass.back = allocate<float>(most * kHidden);
  pass.error = allocate<float>(most * kClasses);
  pass.loss = allocate<float>(most);
  pass.right = allocate<int>(most);
  return pass;
}

static void forward(const Pass& pass, cudaStream_t stream) {
  enter(stream, pass.count * kHidden, Hidden{pass});
  enter(stream, pass.count, Classes{pass});
}

static double test_accuracy(const Replica& replica) {
  check(cudaSetDevice(replica.gpu));
  forward(replica.test, replica.stream);
  int sum = 0;
  for (int right : download(replica, replica.test.right, test.images())) sum += right;
  return 100.0 * sum / test.images();
}

// ---- dsgd

// Takes the error's address, since arguments are evaluated in any order and the call among them sets it.
static void check(int32_t status, dsgd_error** error) {
  if (status == DSGD_OK) return;
  fprintf(stderr, "digits: %s\n", dsgd_error_message(*error));
  dsgd_error_free(*error);
  exit(1);
}

// One step on images [begin, end) of the epoch, divided over the replicas. The host enqueues kernels, and
// marks each gradient in its stream. The host waits only for the step. Work that it enqueues in these streams
// afterwards sees the new values.
static void step(dsgd_session* session, std::vector<Replica>& replicas, dsgd_parameter* const* parameters,
                 size_t begin, size_t end, dsgd_step_result* result) {
  dsgd_error* error = nullptr;
  const size_t count = end - begin;
  const auto share = [&](size_t r) { return begin + count * r / replicas.size(); };
  for (size_t r = 0; r < replicas.size(); ++r) {  // the mean weighs each replica by its images
    check(dsgd_replica_weight(replicas[r].handle, static_cast<double>(share(r + 1) - share(r)), &error),
          &error);
  }
  dsgd_op* op;
  check(dsgd_step_begin(session, static_cast<double>(count), nullptr, &op, &error), &error);
  for (size_t r = 0; r < replicas.size(); ++r) {
    Replica& replica = replicas[r];
    const auto ready = [&](int parameter) {
      check(dsgd_gradient_ready(replica.handle, parameters[parameter], replica.stream, &error), &error);
    };
    Pass& pass = replica.train;
    pass.rows = replica.order + share(r);
    pass.count = static_cast<int>(share(r + 1) - share(r));  // none: the gradients are zeros, with weight 0
    check(cudaSetDevice(replica.gpu));
    forward(pass, replica.stream);
    enter(replica.stream, 1, AddLosses{pass, replica.loss});
    enter(replica.stream, (kHidden + 1) * kClasses, OutputGradient{pass});
    ready(2);
    ready(3);
    enter(replica.stream, pass.count * kHidden, Back{pass});
    enter(replica.stream, (kInputs + 1) * kHidden, HiddenGradient{pass});
    ready(0);
    ready(1);
  }
  check(dsgd_op_wait(op, -1, &error), &error);
  check(dsgd_op_step_result(op, result, &error), &error);
  dsgd_op_free(op);
}

static double now() {
  timespec time;
  timespec_get(&time, TIME_UTC);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

static const char* option(int argc, char** argv, const char* name, const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return otherwise;
}

static void show_warning(const dsgd_log_record* record, void*) {
  if (dsgd_log_record_level(record) <= DSGD_LOG_WARNING)
    fprintf(stderr, "digits: %s\n", dsgd_log_record_message(record));
}

int main(int argc, char** argv) {
  static const char kUsage[] =
      "digits --data FILE [--device cuda:K,...] [--epochs N] [--batch N] [--seed N] [--optimizer NAME] "
      "[--optimizer-options WORDS]";
  if (argc > 1 && strcmp(argv[1], "--help") == 0) {
    puts(kUsage);
    return 0;
  }
  for (int i = 1; i < argc; i += 2) {
    const std::string word = std::string(argv[i]) + ' ';
    if (strncmp(argv[i], "--", 2) != 0 || !strstr(kUsage, word.c_str()) || i + 1 == argc) {
      fprintf(stderr, "digits: unknown option '%s', or its value is missing; usage: %s\n", argv[i], kUsage);
      return 2;
    }
  }
  read_data(option(argc, argv, "--data", "digits.csv"));
  const int epochs = atoi(option(argc, argv, "--epochs", "40")),
            batch = atoi(option(argc, argv, "--batch", "16"));
  const unsigned seed = static_cast<unsigned>(atoi(option(argc, argv, "--seed", "1")));
  if (batch < 1 || batch > kMaxBatch || epochs < 1) {
    fprintf(stderr, "digits: --batch is 1 to %d, --epochs at least 1\n", kMaxBatch);
    return 2;
  }
  // A replica on each of these. dsgd run --set devices=auto --set devices_per_worker=1 gives each worker one
  // GPU.
  const char* devices = option(argc, argv, "--device", getenv("DSGD_DEVICES") ? "" : "auto");

  dsgd_error* error = nullptr;
  dsgd_config* config = dsgd_config_new();  // DSGD_* variables, for example from `dsgd run`
  check(dsgd_config_log_hook(config, show_warning, nullptr, &error), &error);
  if (*devices) check(dsgd_config_set(config, "devices", devices, &error), &error);
  dsgd_session* session;
  check(dsgd_init(config, &session, &error), &error);
  dsgd_session_info info;
  dsgd_session_info_init(&info, sizeof info);
  check(dsgd_session_info_read(session, &info, &error), &error);

  // The model: four tensors, and a copy of them on each of the devices, in memory of dsgd's there.
  static const struct {
    const char* name;
    int64_t shape[2];
    size_t ndim;
  } kTensors[] = {{"hidden.weight", {kInputs, kHidden}, 2},
                  {"hidden.bias", {kHidden}, 1},
                  {"output.weight", {kHidden, kClasses}, 2},
                  {"output.bias", {kClasses}, 1}};
  dsgd_parameter* parameters[4];
  for (int i = 0; i < 4; ++i) {
    check(dsgd_parameter_add(session, kTensors[i].name, DSGD_FLOAT32, kTensors[i].shape, kTensors[i].ndim, 0,
                             &parameters[i], &error),
          &error);
  }
  std::string names;
  std::vector<Replica> replicas(static_cast<size_t>(info.replicas));
  for (size_t r = 0; r < replicas.size(); ++r) {
    Replica& replica = replicas[r];
    // Says if there is no such GPU.
    check(dsgd_replica_add(session, nullptr, &replica.handle, &error), &error);
    const std::string name = dsgd_replica_device(replica.handle);
    if (name.rfind("cuda:", 0) != 0) {
      fprintf(stderr,
              "digits: `devices` gives this worker %s, and a GPU is needed; give --device cuda:0 (with auto, "
              "no GPU was found)\n",
              name.c_str());
      return 2;
    }
    names += (r ? "," : "") + name;
    replica.gpu = atoi(name.c_str() + strlen("cuda:"));
    check(cudaSetDevice(replica.gpu));
    check(cudaStreamCreateWithFlags(&replica.stream, cudaStreamNonBlocking));
    Tensors value, gradient;
    float** values[] = {&value.w1, &value.b1, &value.w2, &value.b2};
    float** gradients[] = {&gradient.w1, &gradient.b1, &gradient.w2, &gradient.b2};
    for (int i = 0; i < 4; ++i) {
      void *data, *slope;
      check(dsgd_alloc(replica.handle, parameters[i], &data, &slope, &error), &error);
      *values[i] = static_cast<float*>(data);
      *gradients[i] = static_cast<float*>(slope);
    }
    // The data set, once.
    replica.train = new_pass(replica, train, batch);
    replica.test = new_pass(replica, test, test.images());
    replica.train.value = replica.test.value = value;
    replica.train.gradient = gradient;
    std::vector<int64_t> every(test.images());
    for (int n = 0; n < test.images(); ++n) every[n] = n;
    int64_t* rows = allocate<int64_t>(every.size());
    upload(replica, rows, every);
    replica.test.rows = rows;
    replica.test.count = test.images();
    replica.order = allocate<int64_t>(train.images());
    replica.loss = allocate<double>(1);
  }
  check(dsgd_optimizer_set(session, option(argc, argv, "--optimizer", "sgd"),
                           option(argc, argv, "--optimizer-options", "lr=0.1 momentum=0.9"), &error),
        &error);
  std::vector<float> w1(kInputs * kHidden), w2(kHidden * kClasses);
  initialise(w1, w2, seed);
  check(cudaSetDevice(replicas[0].gpu));
  upload(replicas[0], replicas[0].train.value.w1, w1);
  upload(replicas[0], replicas[0].train.value.w2, w2);
  // dsgd_start waits for the work in the default stream, but not for the work in this one.
  check(cudaStreamSynchronize(replicas[0].stream));
  // From here on all replicas of all workers hold rank 0's values.
  check(dsgd_start(session, nullptr, nullptr, &error), &error);

  dsgd_shard* shard;
  check(dsgd_shard_new(session, train.images(), seed, 0, &shard, &error), &error);
  std::vector<int64_t> order(dsgd_shard_size(shard));
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    size_t size = 0;
    check(dsgd_shard_epoch(shard, static_cast<uint64_t>(epoch), &error), &error);
    if (!order.empty()) check(dsgd_shard_next(shard, order.data(), order.size(), &size, &error), &error);
    const double began = now();
    for (const Replica& replica : replicas) {
      check(cudaSetDevice(replica.gpu));
      upload(replica, replica.order, order);
      check(cudaMemsetAsync(replica.loss, 0, sizeof(double), replica.stream));
    }
    dsgd_step_result result;
    dsgd_step_result_init(&result, sizeof result);
    for (size_t begin = 0; !result.all_done;) {
      const size_t end = std::min(begin + batch, size);
      if (begin < end) {
        step(session, replicas, parameters, begin, end, &result);
      } else {  // a worker that has no data left goes on with weight 0 until nobody has
        check(dsgd_step(session, 0, &result, &error), &error);
      }
      begin = end;
    }
    double loss = 0.0;
    for (const Replica& replica : replicas) {
      check(cudaSetDevice(replica.gpu));
      loss += download(replica, replica.loss, 1)[0];
    }
    const double seconds = now() - began;
    printf("{\"epoch\": %d, \"loss\": %.6f, \"accuracy\": %.4f, \"samples_per_second\": %.1f}\n", epoch,
           loss / static_cast<double>(size), test_accuracy(replicas[0]), static_cast<double>(size) / seconds);
    fflush(stdout);
  }

  uint64_t digest;
  check(dsgd_digest(session, &digest, &error), &error);
  printf(
      "{\"done\": true, \"rank\": %d, \"language\": \"c\", \"device\": \"%s\", \"accuracy\": %.4f, "
      "\"digest\": "
      "\"%016llx\"}\n",
      static_cast<int>(dsgd_rank(session)), names.c_str(), test_accuracy(replicas[0]),
      static_cast<unsigned long long>(digest));
  dsgd_shard_free(shard);
  const int32_t finalized = dsgd_finalize(session);
  dsgd_config_free(config);
  for (const Replica& replica : replicas) check(cudaStreamDestroy(replica.stream));
  for (void* data : allocations) check(cudaFree(data));
  return finalized == DSGD_OK ? 0 : 1;
}

// The promises of device.h, for every device: the host, and a GPU's backend (on the fake runtime here, on a
// real one where there is a GPU). Results are compared bit for bit with loops that are written here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "core/base/half.h"
#include "core/device/device.h"
#include "core/optimizer/apply.h"
#include "core/optimizer/optimizer.h"
#include "tests/unit/device/gpu.h"

namespace dsgd::device {
namespace {

template <typename Stored>
constexpr DType kDType = std::is_same_v<Stored, Float16>    ? DType::kFloat16
                         : std::is_same_v<Stored, Bfloat16> ? DType::kBfloat16
                         : sizeof(Stored) == 4              ? DType::kFloat32
                                                            : DType::kFloat64;

std::shared_ptr<Device> open([[maybe_unused]] const std::string& name) {
#ifdef DSGD_TEST_CUDA
  if (name == "cuda") {
    auto device = Device::open(cuda_backend(), 0);
    EXPECT_TRUE(device.ok()) << device.status().message();
    return device.value();
  }
#endif
  return Device::host();
}

class DeviceConformance : public testing::TestWithParam<const char*> {
 protected:
  DeviceConformance() : device(open(GetParam())), queue(std::move(device->new_queue()).value()) {}

  void finish() { ok(device::finish(*device, *queue)); }

  // Elements on the device, beginning `shift` elements behind an aligned address.
  template <typename T>
  struct Buffer {
    std::shared_ptr<void> memory, staging;
    size_t count, shift;
    T* data() const { return static_cast<T*>(memory.get()) + shift; }
  };
  template <typename T>
  Buffer<T> buffer(const std::vector<T>& values, size_t shift = 0) {
    Buffer<T> made{device->allocate((values.size() + shift) * sizeof(T)).value(),
                   device->allocate_staging((values.size() + shift) * sizeof(T)).value(), values.size(),
                   shift};
    if (!values.empty()) std::memcpy(made.staging.get(), values.data(), values.size() * sizeof(T));
    ok(queue->copy(made.data(), made.staging.get(), values.size() * sizeof(T)));
    return made;
  }
  template <typename T>
  std::vector<T> read(const Buffer<T>& buffer) {
    finish();
    ok(queue->copy(buffer.staging.get(), buffer.data(), buffer.count * sizeof(T)));
    finish();
    const T* data = static_cast<const T*>(buffer.staging.get());
    return std::vector<T>(data, data + buffer.count);
  }
  template <typename Stored>
  std::vector<Stored> draw(size_t count) {
    std::uniform_real_distribution<Wide<Stored>> uniform(-1, 1);
    std::vector<Stored> values(count);
    for (Stored& value : values)
      value = narrow<Stored>(std::ldexp(uniform(random), static_cast<int>(random() % 9)));
    return values;
  }

  template <typename Stored>
  void sums();
  template <typename Stored>
  void finite_sums();
  template <typename Stored>
  void updates(const char* name, const char* options);
  template <typename Stored>
  void means_and_copies();
  template <typename T>
  void squares();

  std::mt19937 random{7};
  const std::shared_ptr<Device> device;
  const std::unique_ptr<WorkQueue> queue;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

TEST_P(DeviceConformance, MemoryIsZeroedAlignedAndOutlivesTheDevicesReference) {
  for (size_t nbytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{1} << 20}) {
    auto memory = device->allocate(nbytes).value();
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 256, 0u);
    Buffer<uint8_t> buffer{memory, device->allocate_staging(nbytes).value(), nbytes, 0};
    EXPECT_EQ(read(buffer), std::vector<uint8_t>(nbytes, 0));
  }
  auto other = open(GetParam());
  auto memory = other->allocate(100).value();
  other.reset();
  memory.reset();
}

TEST_P(DeviceConformance, StagingOfWhichPartsAreCopiedIsZeroedAndTakesCopiesThere) {
  // Apart, on one page, on pages that follow each other, and without pages between them.
  const std::vector<ByteRange> parts = {{0, 8}, {100, 108}, {4096, 4097}, {20'000, 50'000}, {65'530, 65'536}};
  const size_t nbytes = 65'536;
  auto staging = device->allocate_staging_parts(nbytes, parts).value();
  char* const host = static_cast<char*>(staging.get());
  EXPECT_EQ(std::count(host, host + nbytes, 0), static_cast<ptrdiff_t>(nbytes));
  auto there = device->allocate(nbytes).value();
  for (const ByteRange& part : parts) {
    const size_t size = part.end - part.begin;
    std::memset(host + part.begin, 7, size);
    ok(queue->copy(static_cast<char*>(there.get()) + part.begin, host + part.begin, size));
    finish();
    std::memset(host + part.begin, 0, size);
    ok(queue->copy(host + part.begin, static_cast<char*>(there.get()) + part.begin, size));
    finish();
    EXPECT_EQ(std::count(host + part.begin, host + part.end, 7), static_cast<ptrdiff_t>(size));
  }
  EXPECT_NE(device->allocate_staging_parts(0, {}).value(), nullptr);
}

TEST_P(DeviceConformance, WorkOfAQueueHappensInOrder) {
  auto a = buffer(draw<float>(1000)), b = buffer(draw<float>(1000)), c = buffer(draw<float>(1000));
  const std::vector<float> first = read(a);
  for (int round = 0; round < 20; ++round) {
    ok(queue->copy(b.data(), a.data(), 4000));
    ok(queue->copy(c.data(), b.data(), 4000));
    ok(queue->copy(a.data(), c.data(), 4000));
  }
  EXPECT_EQ(read(c), first);
}

TEST_P(DeviceConformance, WorkBehindAnEventOfAnotherQueueWaits) {
  auto other = std::move(device->new_queue()).value();
  auto a = buffer(draw<float>(100'000)), b = buffer(std::vector<float>(100'000)),
       c = buffer(std::vector<float>(100'000));
  const std::vector<float> first = read(a);
  auto event = std::move(device->new_event()).value();
  constexpr size_t kLarge = 16 << 20;
  const auto large = device->allocate(2 * kLarge).value();
  char* const from = static_cast<char*>(large.get());
  for (int i = 0; i < 16; ++i) ok(queue->copy(from + kLarge, from, kLarge));  // busy when the other begins
  for (int round = 0; round < 20; ++round) {
    ok(queue->copy(b.data(), a.data(), 400'000));
    ok(queue->record(*event));
    ok(other->wait(*event));
    ok(other->copy(c.data(), b.data(), 400'000));
    ok(other->record(*event));
    ok(queue->wait(*event));
    ok(queue->copy(a.data(), c.data(), 400'000));
  }
  EXPECT_EQ(read(a), first);
  EXPECT_EQ(read(c), first);
}

template <typename Stored>
void DeviceConformance::sums() {
  using T = Wide<Stored>;
  struct Case {
    std::vector<size_t> counts;
    uint32_t most_terms;
    size_t shift;  // of gradients
  };
  std::vector<size_t> many;
  for (size_t i = 0; i < 161; ++i) many.push_back((i * i * 31) % 3000);
  const std::vector<Case> cases = {{{1}, 1, 0},      {{5, 0, 16, 3}, 3, 0}, {{8191, 8192, 8193}, 2, 0},
                                   {{70'000}, 3, 0}, {{70'001}, 3, 1},      {many, 3, 0},
                                   {many, 2, 3},     {{1000}, 300, 0},      {{40, 50}, 129, 1}};
  for (const Case& c : cases) {
    SCOPED_TRACE("case " + std::to_string(&c - cases.data()));
    std::vector<SumPiece> pieces;
    std::vector<Term> terms;
    std::vector<Buffer<Stored>> gradients;
    std::vector<T> before, expected;
    for (size_t count : c.counts) {
      const uint32_t n = c.most_terms > 100 ? c.most_terms : random() % (c.most_terms + 1);
      pieces.push_back({expected.size(), count, static_cast<uint32_t>(terms.size()), n, kDType<Stored>});
      std::vector<T> sum(count, 0);
      for (uint32_t t = 0; t < n; ++t) {
        const std::vector<Stored> gradient = draw<Stored>(count);
        const double weight = 1 + static_cast<double>(random() % 1000) / 7;
        gradients.push_back(buffer(gradient, c.shift));
        terms.push_back({gradients.back().data(), weight});
        for (size_t i = 0; i < count; ++i) {
          // Rounded before it is added.
          const volatile T product = static_cast<T>(weight) * widen(gradient[i]);
          sum[i] = t == 0 ? product : sum[i] + product;
        }
      }
      expected.insert(expected.end(), sum.begin(), sum.end());
      // Pieces are overwritten, the gaps between them are not.
      const std::vector<T> garbage = draw<T>(count);
      before.insert(before.end(), garbage.begin(), garbage.end());
      while (expected.size() % 16) before.push_back(7), expected.push_back(7);
    }
    Buffer<T> bucket = buffer(before);
    ok(queue->sum(kDType<T>, pieces, terms, bucket.data()));
    EXPECT_TRUE(same_bits(read(bucket), expected));
  }
}

TEST_P(DeviceConformance, SumsAreTheBitsOfAPlainLoop) {
  sums<float>();
  sums<double>();
  sums<Float16>();
  sums<Bfloat16>();
}

// Pieces with more terms, and more pieces, than a launch has room for; aligned and not.
template <typename Stored>
void DeviceConformance::finite_sums() {
  using T = Wide<Stored>;
  const T none[] = {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                    -std::numeric_limits<T>::infinity()};
  for (const size_t shift : {size_t{0}, size_t{1}}) {
    const std::vector<size_t> counts = {20'003, 0, 1, 100, 8192};
    const std::vector<uint32_t> terms_of = {3, 1, 1300, 0, 2};
    std::vector<SumPiece> pieces;
    std::vector<Term> terms;
    std::vector<Buffer<Stored>> gradients;
    std::vector<T> expected;
    std::vector<NonFinite> want(counts.size());
    for (size_t p = 0; p < counts.size(); ++p) {
      pieces.push_back(
          {expected.size(), counts[p], static_cast<uint32_t>(terms.size()), terms_of[p], kDType<Stored>});
      std::vector<T> sum(counts[p], 0);
      for (uint32_t t = 0; t < terms_of[p]; ++t) {
        std::vector<Stored> gradient = draw<Stored>(counts[p]);
        std::vector<size_t> broken;
        if (p == 0 && t != 1) broken = {20'002, 9000 + t, 8191 + 4 * t, 77};
        if (p == 2 && t % 100 == 1) broken = {0};
        for (const size_t i : broken) {
          gradient[i] = narrow<Stored>(none[i % 3]);
          want[p].add({1, i}, 0);
        }
        gradients.push_back(buffer(gradient, shift));
        terms.push_back({gradients.back().data(), 2.5});
        for (size_t i = 0; i < counts[p]; ++i) {
          const T element = std::isfinite(widen(gradient[i])) ? widen(gradient[i]) : 0;
          const volatile T product = T{2.5} * element;
          sum[i] = t == 0 ? product : sum[i] + product;
        }
      }
      expected.insert(expected.end(), sum.begin(), sum.end());
      while (expected.size() % 16) expected.push_back(7);
    }
    Buffer<T> bucket = buffer(std::vector<T>(expected.size(), 7));
    Buffer<NonFinite> found = buffer(std::vector<NonFinite>(counts.size()));
    ok(queue->sum(kDType<T>, pieces, terms, bucket.data(), found.data()));
    EXPECT_TRUE(same_bits(read(bucket), expected));
    const std::vector<NonFinite> records = read(found);
    for (size_t p = 0; p < counts.size(); ++p) {
      EXPECT_EQ(records[p].count, want[p].count) << p;
      EXPECT_EQ(records[p].first, want[p].first) << p;
    }
  }
}

TEST_P(DeviceConformance, ElementsThatAreNotFiniteCountAsZeroAndAreRecordedByPiece) {
  finite_sums<float>();
  finite_sums<double>();
  finite_sums<Float16>();
  finite_sums<Bfloat16>();
}

template <typename Stored>
void DeviceConformance::updates(const char* name, const char* options) {
  using T = Wide<Stored>;
  constexpr bool kHalf = is_half(kDType<Stored>);
  auto optimizer = std::move(Optimizer::make(name, options)).value();
  const size_t states = static_cast<size_t>(optimizer->state_count());
  for (size_t shift : {size_t{0}, size_t{1}}) {
    for (uint32_t replicas : {1u, 2u, 4u, 9u}) {
      SCOPED_TRACE(std::string(name) + ' ' + options + " shift " + std::to_string(shift) + " replicas " +
                   std::to_string(replicas));
      const std::vector<size_t> counts = {5, 8192, 0, 20'003, 1};
      struct Tensor {
        std::vector<Stored> value;
        std::vector<T> master;
        std::vector<std::vector<T>> state;
        std::vector<Buffer<Stored>> values;
        std::vector<Buffer<T>> states;  // and master values
      };
      std::vector<Tensor> tensors;
      for (size_t count : counts) {
        // Master values come from the values.
        Tensor tensor{draw<Stored>(count), std::vector<T>(count, 0), {}, {}, {}};
        for (uint32_t r = 0; r < replicas; ++r)
          tensor.values.push_back(buffer(r == 0 ? tensor.value : draw<Stored>(count), shift));
        for (size_t s = 0; s < states; ++s) tensor.state.push_back(std::vector<T>(count, 0));
        for (size_t s = 0; s <= states; ++s) tensor.states.push_back(buffer(std::vector<T>(count, 0), shift));
        tensors.push_back(std::move(tensor));
      }
      for (uint64_t step = 0; step < 3; ++step) {
        std::vector<UpdatePiece> pieces;
        std::vector<void*> targets;
        std::vector<T> sums;
        for (size_t t = 0; t < tensors.size(); ++t) {
          Tensor& tensor = tensors[t];
          const double divisor = 3 + static_cast<double>(t);
          const ParameterSettings settings{
              .rate = 0.5, .decay = t == 1 ? 0.25 : -1, .frozen = t == 3 && step == 1};
          UpdatePiece piece{sums.size(),
                            counts[t],
                            divisor,
                            static_cast<uint32_t>(targets.size()),
                            replicas,
                            Action::kUpdate,
                            optimizer->rule(step, settings),
                            {},
                            kDType<Stored>,
                            nullptr};
          for (size_t s = 0; s < states; ++s) piece.state[s] = tensor.states[s].data();
          if (kHalf) piece.master = tensor.states[states].data();
          if (step == 2 && counts[t] > 3) {  // the host writes a value
            tensor.value[3] = narrow<Stored>(T{2.5});
            auto written = buffer(std::vector<Stored>{tensor.value[3]});
            ok(queue->copy(tensor.values[0].data() + 3, written.data(), sizeof(Stored)));
            finish();
          }
          for (auto& value : tensor.values) targets.push_back(value.data());
          pieces.push_back(piece);
          const std::vector<T> sum = draw<T>(counts[t]);
          sums.insert(sums.end(), sum.begin(), sum.end());
          while (sums.size() % 16) sums.push_back(0);
          std::vector<T> mean(sum);
          for (T& element : mean) element /= static_cast<T>(divisor);
          std::vector<const void*> in;
          std::vector<void*> out;
          for (auto& state : tensor.state) in.push_back(state.data()), out.push_back(state.data());
          if constexpr (kHalf) {
            for (size_t i = 0; i < counts[t]; ++i) {
              const float rounded = widen(narrow<Stored>(tensor.master[i])), value = widen(tensor.value[i]);
              if (std::memcmp(&rounded, &value, sizeof value) != 0) tensor.master[i] = value;
            }
            apply(piece.rule, kDType<T>, counts[t], mean.data(), tensor.master.data(), tensor.master.data(),
                  in, out);
            for (size_t i = 0; i < counts[t]; ++i) tensor.value[i] = narrow<Stored>(tensor.master[i]);
          } else {
            apply(piece.rule, kDType<T>, counts[t], mean.data(), tensor.value.data(), tensor.value.data(), in,
                  out);
          }
        }
        Buffer<T> bucket = buffer(sums);
        ok(queue->update(kDType<T>, pieces, targets, bucket.data()));
        for (size_t t = 0; t < tensors.size(); ++t) {
          for (auto& value : tensors[t].values)
            EXPECT_TRUE(same_bits(read(value), tensors[t].value)) << "tensor " << t;
          for (size_t s = 0; s < states; ++s) {
            EXPECT_TRUE(same_bits(read(tensors[t].states[s]), tensors[t].state[s]))
                << "tensor " << t << " state " << s;
          }
          if (kHalf) {
            EXPECT_TRUE(same_bits(read(tensors[t].states[states]), tensors[t].master)) << "tensor " << t;
          }
        }
        EXPECT_TRUE(same_bits(read(bucket), sums)) << "the bucket is read only";
      }
    }
  }
}

TEST_P(DeviceConformance, UpdatesAreTheBitsOfTheHostsLoops) {
  const std::vector<std::pair<const char*, const char*>> optimizers = {
      {"sgd", "lr=0.1"},
      {"sgd", "lr=0.1 weight_decay=0.01"},
      {"sgd", "lr=0.1 momentum=0.9"},
      {"sgd", "lr=0.1 momentum=0.9 nesterov=1"},
      {"sgd", "lr=0.1 momentum=0.9 dampening=0.5 weight_decay=0.01"},
      {"adam", "lr=0.01"},
      {"adam", "lr=0.01 weight_decay=0.01"},
      {"adam", "lr=0.01 amsgrad=1"},
      {"adamw", "lr=0.01"},
      {"adamw", "lr=0.01 amsgrad=1 beta1=0.3"}};
  // compute-sanitizer makes kernels slow. The first optimizer has the least state, the last one the most.
  const bool reduced = std::getenv("DSGD_TEST_REDUCED") != nullptr;
  for (size_t i = 0; i < optimizers.size(); ++i) {
    if (reduced && i > 0 && i + 1 < optimizers.size()) continue;
    const auto& [name, options] = optimizers[i];
    updates<float>(name, options);
    updates<double>(name, options);
    updates<Float16>(name, options);
    updates<Bfloat16>(name, options);
  }
}

// More tensors than a launch has room for, or more settings; each is updated once, by its own.
TEST_P(DeviceConformance, ManyTensorsAreUpdatedEachByItsOwnSettings) {
  constexpr size_t kTensors = 600, kElements = 40;
  for (const size_t settings : {size_t{1}, size_t{2}, size_t{7}, kTensors}) {
    SCOPED_TRACE(std::to_string(settings) + " settings");
    auto optimizer = std::move(Optimizer::make("sgd", "lr=1 momentum=0.5")).value();
    const std::vector<float> sums = draw<float>(kTensors * kElements);
    Buffer<float> bucket = buffer(sums), values = buffer(std::vector<float>(sums.size(), 0)),
                  state = buffer(std::vector<float>(sums.size(), 0));
    std::vector<UpdatePiece> pieces;
    std::vector<void*> targets;
    std::vector<float> expected;
    for (size_t t = 0; t < kTensors; ++t) {
      const double rate = 1 + static_cast<double>(t % settings);
      const size_t position = t * kElements;
      pieces.push_back({position,
                        kElements,
                        4,
                        static_cast<uint32_t>(t),
                        1,
                        Action::kUpdate,
                        optimizer->rule(0, {.rate = rate, .decay = -1, .frozen = false}),
                        {state.data() + position, nullptr, nullptr}});
      targets.push_back(values.data() + position);
      for (size_t i = 0; i < kElements; ++i)
        expected.push_back(0 + static_cast<float>(-rate) * (sums[position + i] / 4));
    }
    ok(queue->update(DType::kFloat32, pieces, targets, bucket.data()));
    EXPECT_TRUE(same_bits(read(values), expected));
  }
}

template <typename Stored>
void DeviceConformance::means_and_copies() {
  const std::vector<float> sums = draw<float>(10'001);
  Buffer<float> bucket = buffer(sums);
  for (Action action : {Action::kMean, Action::kCopy}) {
    std::vector<Stored> expected;
    for (float sum : sums) expected.push_back(narrow<Stored>(action == Action::kMean ? sum / 7.0f : sum));
    std::vector<Buffer<Stored>> outputs;
    std::vector<void*> targets;
    for (size_t t = 0; t < 6; ++t) {
      outputs.push_back(buffer(draw<Stored>(sums.size()), t % 2));
      targets.push_back(outputs.back().data());
    }
    const UpdatePiece piece{0, sums.size(), 7, 0, 6, action, {}, {}, kDType<Stored>, nullptr};
    ok(queue->update(DType::kFloat32, {&piece, 1}, targets, bucket.data()));
    for (auto& output : outputs) EXPECT_TRUE(same_bits(read(output), expected));
  }
}

TEST_P(DeviceConformance, MeansAndCopiesGoToAllTargets) {
  means_and_copies<float>();
  means_and_copies<Float16>();
  means_and_copies<Bfloat16>();
}

template <typename T>
void DeviceConformance::squares() {
  std::vector<SquarePiece> pieces;
  size_t position = 0;
  for (size_t p = 0; p < 300; ++p) {
    const size_t count = p == 7 ? 3 * kSquareRange + 1 : (p * p * 31) % 3000;
    pieces.push_back({position, count});
    position += count + p % 3;
  }
  std::vector<T> elements = draw<T>(position);
  for (const bool finite : {true, false}) {
    if (!finite)
      elements[pieces[7].position] = std::numeric_limits<T>::quiet_NaN(),
      elements[pieces[8].position] = std::numeric_limits<T>::infinity();
    std::vector<double> expected;
    for (const SquarePiece& piece : pieces) {
      for (uint64_t begin = 0; begin < piece.count; begin += kSquareRange) {
        long double sum = 0;
        for (uint64_t i = begin; i < std::min<uint64_t>(begin + kSquareRange, piece.count); ++i) {
          const long double x = elements[piece.position + i];
          sum += x * x;
        }
        expected.push_back(static_cast<double>(sum));
      }
    }
    auto bucket = buffer(elements);
    auto sums = buffer(std::vector<double>(expected.size()));
    for (int round = 0; round < 2; ++round) {
      ok(queue->squares(kDType<T>, pieces, bucket.data(), sums.data()));
      const std::vector<double> found = read(sums);
      for (size_t r = 0; r < expected.size(); ++r) {
        if (std::isfinite(expected[r])) {
          ASSERT_NEAR(found[r], expected[r], 1e-12 * expected[r]) << r;
        } else {
          ASSERT_FALSE(std::isfinite(found[r])) << r;
        }
      }
    }
  }
}

TEST_P(DeviceConformance, SquaresAreAddedUpInDoubleAndNoNumberThatIsNotFiniteIsLost) {
  squares<float>();
  squares<double>();
}

TEST_P(DeviceConformance, ItsOwnMemoryIsTakenAndHostStreamsAreAsDLPackSays) {
  auto memory = device->allocate(1000).value();
  ok(device->check(memory.get(), 1000));
  ok(device->check(nullptr, 0));
  auto event = std::move(device->new_event()).value();
  ok(device->record_stream(*event, nullptr));
  ok(queue->wait(*event));
  ok(device->stream_wait(nullptr, *event));
  finish();
  if (!device->is_host()) return;
  EXPECT_EQ(device->record_stream(*event, memory.get()).code(), Code::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformance,
                         testing::Values(
#ifdef DSGD_TEST_CUDA
                             "cuda",
#endif
                             "cpu"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace dsgd::device

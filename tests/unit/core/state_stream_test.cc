// A stream gives out each element once, then the sums of later updates. If these are more bytes, or memory is
// missing, it gives out the elements again. Parts that do not fit the model are refused.

#include "core/step/state_stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

namespace {
bool memory_is_short = false;
}  // namespace

// The allocation of sums, which the engine makes while it commits a step.
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return memory_is_short ? nullptr : ::operator new[](size);
}

namespace dsgd {
namespace {

using transport::StateParts;

// Two trained parameters around an untrained one, with one tensor of state each.
struct Worker {
  explicit Worker(size_t count, float first) : values(2 * count + 3), momenta(2 * count) {
    model.optimizer = Optimizer::make("sgd", "lr=1 momentum=0.5").value();
    model.bindings.resize(1);
    state.resize(3);
    for (uint32_t p = 0; p < 3; ++p) {
      auto& parameter = *model.parameters.emplace_back(std::make_unique<Parameter>());
      parameter.index = p;
      parameter.name = "p" + std::to_string(p);
      parameter.trained = p != 1;
      parameter.count = p == 1 ? 3 : count;
      float* const value = values.data() + (p == 2 ? count + 3 : p * count);
      model.bindings[0].emplace_back().value = reinterpret_cast<std::byte*>(value);
      if (parameter.trained)
        state[p].emplace_back(std::shared_ptr<void>(), momenta.data() + (p == 2 ? count : 0));
    }
    for (size_t i = 0; i < values.size(); ++i) values[i] = first * static_cast<float>(i);
    for (size_t i = 0; i < momenta.size(); ++i) momenta[i] = first * static_cast<float>(i) / 2;
    auto replica = std::make_unique<Replica>();
    replica->device = device::Device::host();
    model.replicas.push_back(std::move(replica));
    contexts = make_contexts(model, true).value();
  }
  // As a step does: notes the update, and makes it.
  void update(StateStream* stream, uint32_t parameter, uint64_t begin, const std::vector<float>& sums) {
    StateStream::Part part{StateParts::Kind::kUpdate, parameter, begin, sums.size(), 1, 0.25, 1, -1, 2};
    stream->note(part, reinterpret_cast<const std::byte*>(sums.data()));
    const auto* data = reinterpret_cast<const uint8_t*>(sums.data());
    part.data.assign(data, data + sums.size() * sizeof(float));
    EXPECT_TRUE(apply_parts({&part, 1}, model, contexts.front(), state, true).ok());
  }
  Status take(const StateStream::Part& part) {
    const Status fits = check_parts({&part, 1}, model, true);
    return fits.ok() ? apply_parts({&part, 1}, model, contexts.front(), state, true) : fits;
  }
  std::vector<StateStream::Part> answer(StateStream* stream) {
    EXPECT_TRUE(stream->begin_answer(contexts.front(), state).ok());
    return stream->end_answer(contexts.front());
  }

  Model model;
  std::vector<float> values, momenta;
  OptimizerState state;
  std::vector<DeviceContext> contexts;
};

TEST(StateStream, GivesEachElementOnceAndThenTheUpdatesOfThoseThatItHasGiven) {
  constexpr size_t kCount = 100'000;
  Worker giver(kCount, 1), taker(kCount, 0);
  EXPECT_EQ(trained_elements(giver.model), 2 * kCount);
  StateStream stream(giver.model, 10, 2 * kCount - 10, true);
  size_t answers = 0, updates = 0;
  std::vector<float> sums(kCount);
  for (size_t i = 0; i < kCount; ++i) sums[i] = static_cast<float>(i % 7);
  while (!stream.whole()) {
    for (const StateStream::Part& part : giver.answer(&stream)) {
      EXPECT_TRUE(taker.take(part).ok());
      updates += part.kind == StateParts::Kind::kUpdate;
    }
    if (++answers > 3) continue;
    giver.update(&stream, 0, 0, sums);
    giver.update(&stream, 2, 0, sums);
  }
  EXPECT_GT(updates, 0u);
  EXPECT_EQ(taker.model.optimizer->learning_rate(), 1) << "that of its host";
  for (size_t i = 10; i < 2 * kCount - 10; ++i) {
    const size_t value = i < kCount ? i : i + 3;  // behind the untrained parameter
    ASSERT_EQ(taker.values[value], giver.values[value]) << i;
    ASSERT_EQ(taker.momenta[i], giver.momenta[i]) << i;
  }
  EXPECT_EQ(taker.values[9], 0) << "outside of the range";
  EXPECT_EQ(taker.values[kCount], 0) << "untrained";
}

// A receiver that has all parts of the stream.
void expect_equal(const Worker& giver, const Worker& taker, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(taker.values[i], giver.values[i]) << i;
    ASSERT_EQ(taker.momenta[i], giver.momenta[i]) << i;
  }
}

TEST(StateStream, GivesTheElementsAgainWhenTheSumsAreMore) {
  constexpr size_t kCount = 200'000;
  Worker giver(kCount, 1), taker(kCount, 0);
  StateStream stream(giver.model, 0, kCount, true);
  std::vector<float> sums(kCount, 1);
  size_t nbytes = 0;
  const auto take_all = [&] {
    nbytes = 0;
    while (!stream.whole()) {
      for (const StateStream::Part& part : giver.answer(&stream)) {
        EXPECT_TRUE(taker.take(part).ok());
        nbytes += part.data.size();
      }
    }
    expect_equal(giver, taker, kCount);
  };
  take_all();
  const size_t whole = bytes_of_elements(giver.model, 0, kCount, true);
  EXPECT_EQ(whole, kCount * 2 * sizeof(float)) << "values and momenta";
  EXPECT_EQ(nbytes, whole);
  for (size_t step = 1; step <= 5; ++step) {
    for (size_t made = 0; made < step; ++made) giver.update(&stream, 0, 0, sums);
    take_all();
    EXPECT_EQ(nbytes, step < 3 ? step * kCount * sizeof(float) : whole) << step << " steps";
  }
  // Some of the sums have been given out.
  giver.update(&stream, 0, 0, sums);
  giver.update(&stream, 0, 0, sums);
  for (const StateStream::Part& part : giver.answer(&stream)) EXPECT_TRUE(taker.take(part).ok());
  giver.update(&stream, 0, 0, sums);
  take_all();
  EXPECT_EQ(nbytes, whole);
}

TEST(StateStream, GivesTheElementsAgainWhereThereIsNoMemoryForSums) {
  constexpr size_t kCount = 1000;
  Worker giver(kCount, 1), taker(kCount, 0);
  StateStream stream(giver.model, 0, kCount, true);
  (void)giver.answer(&stream);
  EXPECT_TRUE(stream.whole());
  memory_is_short = true;
  giver.update(&stream, 0, 0, std::vector<float>(kCount, 1));
  memory_is_short = false;
  EXPECT_FALSE(stream.whole());
  for (const StateStream::Part& part : giver.answer(&stream)) EXPECT_TRUE(taker.take(part).ok());
  EXPECT_TRUE(stream.whole());
  expect_equal(giver, taker, kCount);
}

TEST(StateStream, RefusesPartsThatDoNotFitTheModel) {
  Worker taker(8, 0);
  const StateStream::Part right{StateParts::Kind::kState, 2, 4, 4, 0, 0, 0, 0, 0, std::vector<uint8_t>(32)};
  EXPECT_TRUE(taker.take(right).ok());
  const auto refused = [&](const std::function<void(StateStream::Part*)>& change) {
    StateStream::Part part = right;
    change(&part);
    return !taker.take(part).ok();
  };
  EXPECT_TRUE(refused([](auto* part) { part->parameter = 1; })) << "untrained";
  EXPECT_TRUE(refused([](auto* part) { part->parameter = 3; }));
  EXPECT_TRUE(refused([](auto* part) { part->begin = 5; }));
  EXPECT_TRUE(refused([](auto* part) { part->begin = UINT64_MAX; }));
  EXPECT_TRUE(refused([](auto* part) { part->count = UINT64_MAX; }));
  EXPECT_TRUE(refused([](auto* part) { part->data.pop_back(); }));
  EXPECT_TRUE(refused([](auto* part) { part->kind = StateParts::Kind::kUpdate; })) << "twice the bytes";
  EXPECT_FALSE(refused([](auto* part) { part->count = 0, part->data.clear(); }));
}

}  // namespace
}  // namespace dsgd

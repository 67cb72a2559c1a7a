// DLPack tensors: what is accepted, who calls the deleter when, and dsgd's own buffers as tensors.
#include "capi/src/dlpack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/unit/capi/world.h"

namespace {

using ::testing::HasSubstr;

// A float32 [2, 3] tensor that counts the calls of its deleter.
struct Tensor {
  float data[8] = {};
  int64_t shape[2] = {2, 3};
  int64_t strides[2] = {3, 1};
  int deleted = 0;
  DLManagedTensorVersioned managed = {
      .version = {1, 1},
      .manager_ctx = this,
      .deleter = [](DLManagedTensorVersioned* self) { ++static_cast<Tensor*>(self->manager_ctx)->deleted; },
      .flags = 0,
      .dl_tensor = {.data = data,
                    .device = {1, 0},
                    .ndim = 2,
                    .dtype = {2, 32, 1},
                    .shape = shape,
                    .strides = strides,
                    .byte_offset = 0}};
};

class DlpackTest : public ::testing::Test {
 protected:
  DlpackTest() { add_model(&model_); }
  ~DlpackTest() override {
    dsgd_finalize(model_.session);
    dsgd_error_free(error_);
  }
  int32_t bind(Tensor& value, Tensor& gradient) {
    return dsgd_bind_dlpack(model_.replica, model_.weight, &value.managed, &gradient.managed, &error_);
  }
  void start() {
    void* state = nullptr;
    must(dsgd_alloc(model_.replica, model_.state, &state, nullptr, &error_), error_, "alloc");
    must(dsgd_start(model_.session, nullptr, nullptr, &error_), error_, "start");
  }

  // Deleters run when the session ends: the tensors are declared before it ends.
  Tensor value_, gradient_, other_value_, other_gradient_;
  Model model_;
  dsgd_error* error_ = nullptr;
};

TEST_F(DlpackTest, a_step_reads_and_writes_the_tensors_at_their_offset) {
  value_.managed.dl_tensor.byte_offset = 8;
  value_.data[2] = 5;
  gradient_.managed.dl_tensor.strides = nullptr;
  gradient_.data[0] = 1;
  must(dsgd_optimizer_set(model_.session, "sgd", "lr=2", &error_), error_, "optimizer");
  ASSERT_EQ(bind(value_, gradient_), DSGD_OK) << dsgd_error_message(error_);
  start();
  ASSERT_EQ(dsgd_step(model_.session, 1, nullptr, &error_), DSGD_OK) << dsgd_error_message(error_);
  EXPECT_EQ(value_.data[2], 3);
  EXPECT_EQ(value_.deleted + gradient_.deleted, 0);
}

TEST_F(DlpackTest, deleters_run_once_when_others_are_bound_and_when_the_session_ends) {
  ASSERT_EQ(bind(value_, gradient_), DSGD_OK);
  ASSERT_EQ(bind(other_value_, other_gradient_), DSGD_OK);
  EXPECT_EQ(value_.deleted, 1);
  EXPECT_EQ(gradient_.deleted, 1);
  EXPECT_EQ(other_value_.deleted, 0);
  dsgd_finalize(std::exchange(model_.session, nullptr));
  EXPECT_EQ(value_.deleted, 1);
  EXPECT_EQ(other_value_.deleted, 1);
  EXPECT_EQ(other_gradient_.deleted, 1);
}

TEST_F(DlpackTest, a_tensor_without_deleter_is_fine) {
  value_.managed.deleter = nullptr;
  EXPECT_EQ(bind(value_, gradient_), DSGD_OK);
}

TEST_F(DlpackTest, what_does_not_fit_stays_the_callers) {
  const struct {
    const char* message;
    int32_t status;
    std::function<void(Tensor&)> spoil;
  } cases[] = {
      {"DLPack 2.0", DSGD_ERR_UNSUPPORTED, [](Tensor& t) { t.managed.version = {2, 0}; }},
      {"is on DLPack device (2, 0); the replica is on cpu, which is (1, 0)", DSGD_ERR_INVALID_ARGUMENT,
       [](Tensor& t) { t.managed.dl_tensor.device.device_type = 2; }},
      {"64 bits", DSGD_ERR_INVALID_ARGUMENT, [](Tensor& t) { t.managed.dl_tensor.dtype.bits = 64; }},
      {"type code 0", DSGD_ERR_INVALID_ARGUMENT, [](Tensor& t) { t.managed.dl_tensor.dtype.code = 0; }},
      {"4 lanes", DSGD_ERR_INVALID_ARGUMENT, [](Tensor& t) { t.managed.dl_tensor.dtype.lanes = 4; }},
      {"[3, 2]", DSGD_ERR_INVALID_ARGUMENT, [](Tensor& t) { t.shape[0] = 3, t.shape[1] = 2; }},
      {"[2]", DSGD_ERR_INVALID_ARGUMENT, [](Tensor& t) { t.managed.dl_tensor.ndim = 1; }},
      {"contiguous", DSGD_ERR_INVALID_ARGUMENT, [](Tensor& t) { t.strides[0] = 1, t.strides[1] = 2; }},
      {"no data", DSGD_ERR_INVALID_ARGUMENT, [](Tensor& t) { t.managed.dl_tensor.data = nullptr; }},
      {"align", DSGD_ERR_INVALID_ARGUMENT, [](Tensor& t) { t.managed.dl_tensor.byte_offset = 2; }},
  };
  for (const auto& bad : cases) {
    for (const bool spoil_gradient : {false, true}) {
      SCOPED_TRACE(std::string(bad.message) + (spoil_gradient ? " in the gradient" : " in the value"));
      Tensor value, gradient;
      bad.spoil(spoil_gradient ? gradient : value);
      ASSERT_EQ(bind(value, gradient), bad.status);
      EXPECT_THAT(take_message(std::exchange(error_, nullptr)), HasSubstr(bad.message));
      EXPECT_EQ(value.deleted + gradient.deleted, 0);
    }
  }
  EXPECT_EQ(bind(value_, value_), DSGD_ERR_INVALID_ARGUMENT) << "one tensor as both";
}

TEST_F(DlpackTest, a_read_only_tensor_is_refused_where_it_would_be_written) {
  value_.managed.flags = 1;
  ASSERT_EQ(bind(value_, gradient_), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(take_message(std::exchange(error_, nullptr)), HasSubstr("read-only"));
  value_.managed.flags = 0;
  gradient_.managed.flags = 1;
  ASSERT_EQ(bind(value_, gradient_), DSGD_OK) << "gradients are only read";
  ASSERT_EQ(dsgd_optimizer_set(model_.session, "none", nullptr, &error_), DSGD_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(take_message(std::exchange(error_, nullptr)), HasSubstr("'weight'"));
  ASSERT_EQ(bind(other_value_, other_gradient_), DSGD_OK);
  ASSERT_EQ(dsgd_optimizer_set(model_.session, "none", nullptr, &error_), DSGD_OK)
      << dsgd_error_message(error_);
  ASSERT_EQ(bind(value_, gradient_), DSGD_ERR_INVALID_ARGUMENT);
}

TEST_F(DlpackTest, exported_tensors_show_the_buffers_and_keep_them_after_the_session) {
  void *value = nullptr, *gradient = nullptr;
  must(dsgd_alloc(model_.replica, model_.weight, &value, &gradient, &error_), error_, "alloc");
  DLManagedTensorVersioned *values = nullptr, *gradients = nullptr;
  ASSERT_EQ(dsgd_export_dlpack(model_.replica, model_.weight, &values, &gradients, &error_), DSGD_OK)
      << dsgd_error_message(error_);
  dsgd_finalize(std::exchange(model_.session, nullptr));
  EXPECT_EQ(values->version.major, 1u);
  EXPECT_EQ(values->flags, 0u);
  const DLTensor& tensor = values->dl_tensor;
  EXPECT_EQ(tensor.data, value);
  EXPECT_EQ(gradients->dl_tensor.data, gradient);
  ASSERT_EQ(tensor.ndim, 2);
  EXPECT_EQ(tensor.shape[0], 2);
  EXPECT_EQ(tensor.shape[1], 3);
  EXPECT_EQ(tensor.strides[0], 3);
  EXPECT_EQ(tensor.strides[1], 1);
  EXPECT_EQ(tensor.dtype.code, 2);
  EXPECT_EQ(tensor.dtype.bits, 32);
  static_cast<float*>(tensor.data)[5] = 7;
  values->deleter(values);
  static_cast<float*>(gradients->dl_tensor.data)[5] = 7;
  gradients->deleter(gradients);
}

}  // namespace

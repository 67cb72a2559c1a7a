#include "core/step/device_context.h"

#include <algorithm>
#include <cstdlib>

namespace dsgd {

Result<DeviceContext> open_context(std::shared_ptr<device::Device> device) {
  DeviceContext context;
  DSGD_RETURN_IF_ERROR(device->new_queue().into(&context.queue));
  for (auto* event : {&context.enqueued, &context.reached, &context.last_use})
    DSGD_RETURN_IF_ERROR(device->new_event().into(event));
  context.device = std::move(device);
  return context;
}

Result<std::vector<DeviceContext>> make_contexts(const Model& model, bool views_change) {
  std::vector<DeviceContext> contexts;
  for (const auto& replica : model.replicas) {
    auto context = std::find_if(contexts.begin(), contexts.end(),
                                [&](const DeviceContext& p) { return p.device == replica->device; });
    if (context == contexts.end()) {
      DeviceContext opened;
      DSGD_RETURN_IF_ERROR(open_context(replica->device).into(&opened));
      for (auto* queue : {&opened.to_host, &opened.from_host}) {
        if (opened.is_host()) break;
        DSGD_RETURN_IF_ERROR(replica->device->new_queue().into(queue));
      }
      if (views_change && !opened.is_host()) {
        DSGD_RETURN_IF_ERROR(replica->device->new_queue().into(&opened.reader));
        DSGD_RETURN_IF_ERROR(replica->device->allocate_staging(kStagingBytes).into(&opened.staging));
        DSGD_RETURN_IF_ERROR(replica->device->allocate(kStagingBytes).into(&opened.scratch));
        DSGD_RETURN_IF_ERROR(replica->device->new_event().into(&opened.staged));
      }
      context =
          contexts.insert(replica->device->is_host() ? contexts.begin() : contexts.end(), std::move(opened));
    }
    context->replicas.push_back(replica->index);
  }
  return contexts;
}

Status DeviceContext::follow_default_stream(device::WorkQueue& behind) {
  DSGD_RETURN_IF_ERROR(device->record_stream(*enqueued, nullptr));
  return behind.wait(*enqueued);
}

Status DeviceContext::follow(device::WorkQueue& behind, device::WorkQueue& before) {
  DSGD_RETURN_IF_ERROR(before.record(*reached));
  return behind.wait(*reached);
}

Status DeviceContext::follow_copies() {
  for (device::WorkQueue* copies : {to_host.get(), from_host.get(), reader.get()}) {
    if (copies) DSGD_RETURN_IF_ERROR(follow(*queue, *copies));
  }
  return queue->record(*reached);
}

Status DeviceContext::align() {
  DSGD_RETURN_IF_ERROR(follow_copies());
  for (device::WorkQueue* copies : {to_host.get(), from_host.get()}) {
    if (copies) DSGD_RETURN_IF_ERROR(follow(*copies, *queue));
  }
  return {};
}

std::shared_ptr<void> untouched_memory(size_t nbytes) {
  return {std::calloc(nbytes ? nbytes : 1, 1), std::free};
}

}  // namespace dsgd

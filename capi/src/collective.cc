// Collectives: arguments that need no other worker are checked here, the rest is core's.
#include <string>

#include "capi/src/call.h"
#include "capi/src/session.h"

using dsgd::CallOptions;
using dsgd::DType;
using dsgd::Reduction;
using dsgd::Session;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::guard_open;
using dsgd::capi::Options;
using dsgd::capi::run_operation;

namespace {

// The checks that all collectives with data share.
Status check_collective(const Call& call, const dsgd_session* session, const dsgd_group* group,
                        int32_t dtype) {
  DSGD_RETURN_IF_ERROR(call.open(session));
  DSGD_RETURN_IF_ERROR(call.whole_group(group));
  return call.dtype(dtype);
}

// A collective with buffers: prepare(options) may have to open their GPU, and an operation must not block
// while it begins.
template <typename Prepare>
Status run_collective(const Call& call, dsgd_session* session, const dsgd_op_options* options, dsgd_op** op,
                      Prepare&& prepare) {
  const auto given = dsgd::capi::read_options(call, options, Options::kChannelAndStream);
  DSGD_RETURN_IF_ERROR(given.status());
  const dsgd::Result<Session::Collective> collective = prepare(given.value());
  DSGD_RETURN_IF_ERROR(collective.status());
  return run_operation(session, op, collective.value());
}

}  // namespace

extern "C" {

int32_t dsgd_allreduce(dsgd_session* session, dsgd_group* group, const void* send, void* receive,
                       size_t nbytes, int32_t dtype, int32_t reduction, const dsgd_op_options* options,
                       dsgd_op** op, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(check_collective(call, session, group, dtype));
    DSGD_RETURN_IF_ERROR(call.reduction(reduction));
    DSGD_RETURN_IF_ERROR(call.buffer(send, nbytes, dtype, "send"));
    DSGD_RETURN_IF_ERROR(call.buffer(receive, nbytes, dtype, "receive"));
    return run_collective(call, session, options, op, [&](const CallOptions& given) {
      return session->core->allreduce(send, receive, nbytes, static_cast<DType>(dtype),
                                      static_cast<Reduction>(reduction), given);
    });
  });
}

int32_t dsgd_broadcast(dsgd_session* session, dsgd_group* group, void* data, size_t nbytes, int32_t dtype,
                       int32_t root, const dsgd_op_options* options, dsgd_op** op, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(check_collective(call, session, group, dtype));
    DSGD_RETURN_IF_ERROR(call.buffer(data, nbytes, dtype, "data"));
    return run_collective(call, session, options, op, [&](const CallOptions& given) {
      return session->core->broadcast(data, nbytes, static_cast<DType>(dtype), root, given);
    });
  });
}

int32_t dsgd_allgather(dsgd_session* session, dsgd_group* group, const void* send, size_t send_nbytes,
                       void* receive, size_t receive_nbytes, const size_t* element_counts, int32_t dtype,
                       const dsgd_op_options* options, dsgd_op** op, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(check_collective(call, session, group, dtype));
    DSGD_RETURN_IF_ERROR(call.buffer(send, send_nbytes, dtype, "send"));
    DSGD_RETURN_IF_ERROR(call.buffer(receive, receive_nbytes, dtype, "receive"));
    return run_collective(call, session, options, op, [&](const CallOptions& given) {
      return session->core->allgather(send, send_nbytes, receive, receive_nbytes, element_counts,
                                      static_cast<DType>(dtype), given);
    });
  });
}

int32_t dsgd_reduce_scatter(dsgd_session* session, dsgd_group* group, const void* send, size_t send_nbytes,
                            void* receive, size_t receive_nbytes, const size_t* element_counts, int32_t dtype,
                            int32_t reduction, const dsgd_op_options* options, dsgd_op** op,
                            dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(check_collective(call, session, group, dtype));
    DSGD_RETURN_IF_ERROR(call.reduction(reduction));
    DSGD_RETURN_IF_ERROR(call.buffer(send, send_nbytes, dtype, "send"));
    DSGD_RETURN_IF_ERROR(call.buffer(receive, receive_nbytes, dtype, "receive"));
    return run_collective(call, session, options, op, [&](const CallOptions& given) {
      return session->core->reduce_scatter(send, send_nbytes, receive, receive_nbytes, element_counts,
                                           static_cast<DType>(dtype), static_cast<Reduction>(reduction),
                                           given);
    });
  });
}

int32_t dsgd_barrier(dsgd_session* session, dsgd_group* group, const dsgd_op_options* options, dsgd_op** op,
                     dsgd_error** error) {
  return guard_open(__func__, error, session, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(call.whole_group(group));
    return run_operation(
        call, session, options, op,
        [&](Session::Mode mode, const CallOptions& given) { return session->core->barrier(mode, given); },
        Options::kChannel);
  });
}

}  // extern "C"

// Checkpoints.
#include <string>

#include "capi/src/call.h"
#include "capi/src/session.h"

using dsgd::CallOptions;
using dsgd::Session;
using dsgd::Status;
using dsgd::capi::Call;
using dsgd::capi::guard;
using dsgd::capi::run_operation;

namespace {

// Of the session: saves or loads.
using Use = dsgd::Result<std::shared_ptr<dsgd::Operation>> (Session::*)(const std::string& folder,
                                                                        Session::Mode mode,
                                                                        const CallOptions& options);

Status use_checkpoint(const Call& call, dsgd_session* session, const char* folder,
                      const dsgd_op_options* options, dsgd_op** op, Use use) {
  DSGD_RETURN_IF_ERROR(call.open(session));
  if (folder) DSGD_RETURN_IF_ERROR(call.not_empty(folder, "folder"));
  return run_operation(call, session, options, op, [&](Session::Mode mode, const CallOptions& given) {
    return (session->core.get()->*use)(folder ? folder : "", mode, given);
  });
}

}  // namespace

extern "C" {

int32_t dsgd_checkpoint_save(dsgd_session* session, const char* folder, const dsgd_op_options* options,
                             dsgd_op** op, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) -> Status {
    DSGD_RETURN_IF_ERROR(use_checkpoint(call, session, folder, options, op, &Session::save_checkpoint));
    if (op) session->core->wait_until_copied(*(*op)->operation);
    return {};
  });
}

int32_t dsgd_checkpoint_load(dsgd_session* session, const char* folder, const dsgd_op_options* options,
                             dsgd_op** op, dsgd_error** error) {
  return guard(__func__, error, [&](const Call& call) {
    return use_checkpoint(call, session, folder, options, op, &Session::load_checkpoint);
  });
}

}  // extern "C"

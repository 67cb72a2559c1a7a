// The fields of each message (messages.h). Included by the codec only.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "transport/messages.h"
#include "transport/schema/codec.h"
#include "transport/schema/field_reader.h"
#include "transport/schema/fields.h"

namespace dsgd::transport {

inline std::string cut_text(const std::string& from) {
  static constexpr std::string_view kCut = " ... (cut)";
  return from.size() <= kMaxTextBytes ? from : from.substr(0, kMaxTextBytes - kCut.size()).append(kCut);
}

void job_nonce_field(auto& codec, auto& value, auto part) {
  DSGD_FIELD_WITH(part.setJobNonce(data_of(value.job_nonce)), JobNonce, job_nonce, "job nonce",
                  kMaxJobNonceBytes);
}

// ---- the handshake
void fields(auto& codec, Is<Hello> auto& value, auto part) {
  DSGD_FIELD(Protocol, protocol);
  DSGD_FIELD(Role, role, Role::kProbe, "role");
  DSGD_FIELD(Job, job, "job");
  DSGD_FIELD(WorkerId, worker_id, "worker id");
  DSGD_FIELD(Rank, rank);
  DSGD_FIELD(View, view);
  DSGD_FIELD(LibraryVersion, library_version, "library version");
  DSGD_FIELD(Checksum, checksum);
  job_nonce_field(codec, value, part);
  DSGD_FIELD(Nonce, nonce, "nonce");
}

void fields(auto& codec, Is<Challenge> auto& value, auto part) {
  DSGD_STRUCT(Refused, refused);
  if (value.refused.ok()) DSGD_FIELD(Nonce, nonce, "nonce");
}

void fields(auto& codec, Is<Proof> auto& value, auto part) { DSGD_FIELD(Mac, mac, "proof"); }

void fields(auto& codec, Is<HelloReply> auto& value, auto part) {
  DSGD_STRUCT(Status, status);
  DSGD_FIELD(Checksum, checksum);
  if (value.status.ok()) DSGD_FIELD(Proof, proof.mac, "proof");
}

// ---- worker and head
void fields(auto& codec, Is<MemberInfo> auto& value, auto part) {
  DSGD_FIELD(Rank, rank);
  DSGD_FIELD(WorkerId, worker_id, "worker id");
  DSGD_FIELD(Host, host, "host");
  DSGD_FIELD(Machine, machine, "machine");
  DSGD_LIST(Addresses, addresses, "list of addresses", kMaxAddresses, "address");
  DSGD_FIELD(Pid, pid);
  DSGD_FIELD(Number, number);
}

void fields(auto& codec, Is<JoinRequest> auto& value, auto part) {
  DSGD_STRUCT(Member, member);
  DSGD_FIELD(NumWorkers, num_workers);
  DSGD_FIELD(HostsHead, hosts_head);
  DSGD_FIELD(Lease, lease);
  DSGD_FIELD(MinWorkers, min_workers);
  DSGD_FIELD(MaxWorkers, max_workers);
  DSGD_FIELD(RejoinTimeout, rejoin_timeout);
  DSGD_FIELD(StragglerTimeout, straggler_timeout);
  DSGD_FIELD(Incarnation, incarnation);
}

void fields(auto& codec, Is<JoinReply> auto& value, auto part) {
  DSGD_FIELD(View, view);
  DSGD_FIELD(Rank, rank);
  DSGD_FIELD(HeadRank, head_rank);
  DSGD_LIST(Members, members, "list of members", kMaxMembers);
  job_nonce_field(codec, value, part);
  DSGD_FIELD(Learner, learner);
  DSGD_FIELD(Sequence, sequence);
  DSGD_FIELD(Paused, paused);
  DSGD_FIELD(Durable, durable);
}

void fields(auto& codec, Is<Return> auto& value, auto part) {
  DSGD_FIELD(Number, number);
  DSGD_FIELD(View, view);
  DSGD_FIELD(Incarnation, incarnation);
}

void fields(auto& codec, Is<Enter> auto& value, auto part) {
  DSGD_FIELD(Number, number);
  DSGD_FIELD(View, view);
}

void fields(auto& codec, Is<GatheringReply> auto& value, auto part) {
  DSGD_FIELD_WITH(part.setProgress(wire_form(cut_text(value.progress))), Progress, progress, "progress",
                  kMaxTextBytes);
  if constexpr (kReads<decltype(codec)>) value.progress = printable_text(std::move(value.progress));
  DSGD_FIELD(Missing, missing);
  DSGD_FIELD(Storing, storing);
}

void fields(auto& codec, Is<Watch> auto& value, auto part) { DSGD_FIELD(Sequence, sequence); }

void fields(auto& codec, Is<WatchReply> auto& value, auto part) {
  DSGD_FIELD(Sequence, sequence);
  DSGD_FIELD(View, view);
  DSGD_STRUCT(Cause, cause);
  DSGD_FIELD(Left, left);
  DSGD_FIELD(DepartureCall, departure_call);
  DSGD_LIST(Members, members, "list of members", kMaxMembers);
  DSGD_FIELD(HeadRank, head_rank);
  DSGD_FIELD(Paused, paused);
}

void fields(auto& codec, Is<Renew> auto& value, auto part) {
  DSGD_FIELD(Number, number);
  DSGD_FIELD(View, view);
}

void fields(auto& codec, Is<RenewReply> auto& value, auto part) { DSGD_FIELD(Storing, storing); }

void fields(auto& codec, Is<Progress> auto& value, auto part) {
  DSGD_FIELD(Number, number);
  DSGD_FIELD(View, view);
  DSGD_FIELD(PresentView, present_view);
  DSGD_FIELD(Steps, steps);
  DSGD_FIELD(Activity, activity, Progress::Activity::kWaits, "activity");
  DSGD_FIELD(Call, call);
  DSGD_FIELD(Open, open);
  DSGD_FIELD(Operation, operation, "operation", kMaxWaitBytes);
  DSGD_FIELD(Waiting, waiting, "reason to wait", kMaxWaitBytes);
  DSGD_LIST(WaitsFor, waits_for, "list of ranks", kMaxWaitedRanks);
  DSGD_FIELD(HoldsState, holds_state);
}

// The view, the sender (by number in messages to the head, else by rank) and the cause.
void view_sender_and_cause(auto& codec, auto& value, auto part) {
  DSGD_FIELD(View, view);
  if constexpr (requires { value.number; }) {
    DSGD_FIELD(Number, number);
  } else {
    DSGD_FIELD(Rank, rank);
  }
  DSGD_STRUCT(Cause, cause);
}

void fields(auto& codec, Is<Leave> auto& value, auto part) {
  view_sender_and_cause(codec, value, part);
  DSGD_FIELD(DepartureCall, departure_call);
}

void fields(auto& codec, Is<Report> auto& value, auto part) { view_sender_and_cause(codec, value, part); }

void fields(auto& codec, Is<ReportCut> auto& value, auto part) {
  view_sender_and_cause(codec, value, part);
  DSGD_FIELD(PeerNumber, peer_number);
}

// ---- status
void fields(auto& codec, Is<ScaleRequest> auto& value, auto part) { DSGD_FIELD(Workers, workers); }

void fields(auto& codec, Is<WorkerStatus> auto& value, auto part) {
  DSGD_STRUCT(Member, member);
  DSGD_FIELD(State, state, WorkerStatus::State::kLost, "state of a worker");
  DSGD_FIELD(Silence, silence);
  DSGD_FIELD(Reported, reported);
  DSGD_FIELD(Age, age);
  DSGD_FIELD(StepsPerSecond, steps_per_second);
  if (value.reported) DSGD_STRUCT(Progress, progress);
}

void fields(auto& codec, Is<StatusReply> auto& value, auto part) {
  DSGD_FIELD(State, state, StatusReply::State::kFailed, "state of the job");
  DSGD_FIELD(View, view);
  DSGD_FIELD(NumWorkers, num_workers);
  DSGD_FIELD(MinWorkers, min_workers);
  DSGD_FIELD(MaxWorkers, max_workers);
  DSGD_FIELD(WantedWorkers, wanted_workers);
  DSGD_FIELD(ScaleRequests, scale_requests);
  DSGD_FIELD(HeadRank, head_rank);
  DSGD_STRUCT(Cause, cause);
  DSGD_LIST(Missing, missing, "list of missing ranks", kMaxMembers);
  DSGD_FIELD(Refused, refused, "refusal");
  DSGD_LIST(Workers, workers, "list of workers", kMaxMembers);
}

// ---- worker and worker
void fields(auto& codec, Is<OperationFailed> auto& value, auto part) {
  view_sender_and_cause(codec, value, part);
  DSGD_FIELD(Operation, operation);
}

void fields(auto& codec, Is<SessionFailed> auto& value, auto part) {
  view_sender_and_cause(codec, value, part);
}

void fields(auto& codec, Is<HasBegun> auto& value, auto part) {
  DSGD_FIELD(View, view);
  DSGD_FIELD(Rank, rank);
  DSGD_FIELD(Operation, operation);
}

void fields(auto& codec, Is<HasCompleted> auto& value, auto part) {
  DSGD_FIELD(View, view);
  DSGD_FIELD(Rank, rank);
  DSGD_FIELD(Steps, steps);
}

void fields(auto& codec, Is<FetchState> auto& value, auto part) {
  DSGD_FIELD(View, view);
  DSGD_FIELD(Rank, rank);
  DSGD_FIELD(Begin, begin);
  DSGD_FIELD(End, end);
  DSGD_FIELD(Next, next);
  DSGD_FIELD(Signature, signature);
  DSGD_FIELD(Last, last);
}

void fields(auto& codec, Is<StateParts::Part> auto& value, auto part) {
  DSGD_FIELD(Kind, kind, StateParts::Kind::kValues, "kind of a part");
  DSGD_FIELD(Parameter, parameter);
  DSGD_FIELD(Begin, begin);
  DSGD_FIELD(Count, count);
  DSGD_FIELD(Updates, updates);
  DSGD_FIELD(LearningRate, learning_rate);
  DSGD_FIELD(Rate, rate);
  DSGD_FIELD(Decay, decay);
  DSGD_FIELD(Divisor, divisor);
  DSGD_FIELD(Data, data, "part", kMaxStatePartBytes);
}

void fields(auto& codec, Is<StateParts> auto& value, auto part) {
  DSGD_FIELD(Whole, whole);
  DSGD_FIELD(Digest, digest);
  DSGD_LIST(Parts, parts, "list of parts", kMaxStateParts);
}

// The view, the sender and the object.
void view_sender_and_object(auto& codec, auto& value, auto part) {
  DSGD_FIELD(View, view);
  DSGD_FIELD(Rank, rank);
  DSGD_FIELD(Name, name, "object name");
  DSGD_FIELD(Put, put);
}

void fields(auto& codec, Is<PutObject> auto& value, auto part) {
  view_sender_and_object(codec, value, part);
  DSGD_FIELD(Total, total);
  DSGD_FIELD(Data, data, "object", kMaxInlineObjectBytes);
  DSGD_FIELD(Dtype, dtype);
  DSGD_LIST(Shape, shape, "shape of an object", kMaxObjectDimensions);
  DSGD_FIELD(Again, again);
}

void fields(auto& codec, Is<DeleteObject> auto& value, auto part) {
  view_sender_and_object(codec, value, part);
}

void fields(auto& codec, Is<FetchObject> auto& value, auto part) {
  view_sender_and_object(codec, value, part);
  DSGD_FIELD(Offset, offset);
}

void fields(auto& codec, Is<Goodbye> auto& value, auto part) {
  view_sender_and_cause(codec, value, part);
  DSGD_FIELD(Steps, steps);
  DSGD_FIELD(DepartureCall, departure_call);
  DSGD_LIST(Digests, digests, "list of digests", kMaxDigests);
}

void fields(auto& codec, Is<BulkHeader> auto& value, auto part) {
  DSGD_FIELD(View, view);
  DSGD_FIELD(Operation, operation);
  DSGD_FIELD(Source, source);
  DSGD_FIELD(Kind, kind);
  DSGD_FIELD(Dtype, dtype);
  DSGD_FIELD(Reduction, reduction);
  DSGD_FIELD(Algorithm, algorithm);
  DSGD_FIELD(Root, root);
  DSGD_FIELD(Count, count);
  DSGD_FIELD(Tag, tag);
  DSGD_FIELD(Phase, phase);
  DSGD_FIELD(Offset, offset);
}

// ---- the record of a head
void fields(auto& codec, Is<HeadRecord::Worker> auto& value, auto part) {
  DSGD_STRUCT(Info, info);
  DSGD_FIELD(Joined, joined);
  DSGD_FIELD(Incarnation, incarnation);
  DSGD_FIELD(Learner, learner);
  DSGD_FIELD(Left, left);
  DSGD_FIELD(Closed, closed);
  DSGD_FIELD(HoldsState, holds_state);
  DSGD_FIELD(Lost, lost);
  DSGD_STRUCT(Eviction, eviction);
}

void fields(auto& codec, Is<HeadRecord> auto& value, auto part) {
  DSGD_FIELD(Job, job, "job");
  DSGD_FIELD(Address, address, "address");
  DSGD_FIELD(Lease, lease);
  DSGD_FIELD(NumWorkers, num_workers);
  DSGD_FIELD(MinWorkers, min_workers);
  DSGD_FIELD(MaxWorkers, max_workers);
  DSGD_FIELD(RejoinTimeout, rejoin_timeout);
  DSGD_FIELD(StragglerTimeout, straggler_timeout);
  job_nonce_field(codec, value, part);
  DSGD_FIELD(TokenDigest, token_digest, "token digest");
  DSGD_FIELD(View, view);
  DSGD_FIELD(Paused, paused);
  DSGD_FIELD(LastClosed, last_closed);
  DSGD_FIELD(EndedWell, ended_well);
  DSGD_FIELD(Joined, joined);
  DSGD_LIST(Workers, workers, "list of workers", kNoLimit);
  DSGD_FIELD(Confirmed, confirmed);
  DSGD_LIST(News, news, "list of news", kNoLimit);
}

}  // namespace dsgd::transport

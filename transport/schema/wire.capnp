@0x9d3a5cb2f1e60847;
# The messages between the processes of a job. transport/messages.h documents the fields; codec_capnp.h converts between
# both forms. Until the first release fields may be removed and renumbered; after it, fields and union members are only
# appended.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("dsgd::transport::schema");

struct Status {
  code @0 :Int32;  # DSGD_ERR_*; 0: OK, and nothing else is set
  rank @1 :Int32 = -1;
  host @2 :Text;
  operation @3 :Text;
  parameter @4 :Text;
  message @5 :Text;
}

enum Role {
  control @0;
  heartbeat @1;
  peer @2;
  probe @3;
}

struct Hello {  # first bytes of a connection, from the side that dialled
  protocol @0 :UInt32;
  role @1 :Role;
  job @2 :Text;
  nonce @3 :Data;  # 32 bytes
  workerId @4 :Text;
  rank @5 :Int32 = -1;
  view @6 :UInt64;
  libraryVersion @7 :Text;
  checksum @8 :Bool;
  jobNonce @9 :Data;
}

struct Challenge {  # the answer to the hello
  nonce @0 :Data;  # 32 bytes
  refused @1 :Status;
}

struct Proof {  # of the side that dialled
  mac @0 :Data;  # 32 bytes
}

struct HelloReply {  # the verdict of the side that accepted; RPC begins after an OK
  status @0 :Status;
  checksum @1 :Bool;  # frames have checksums from here on, both ways
  proof @2 :Data;  # 32 bytes; none with an error
}

struct MemberInfo {
  rank @0 :Int32 = -1;
  workerId @1 :Text;
  host @2 :Text;
  machine @3 :Text;
  addresses @4 :List(Text);
  pid @5 :Int64;
  number @6 :Int32 = -1;
}

struct JoinRequest {
  member @0 :MemberInfo;
  numWorkers @1 :UInt32;
  hostsHead @2 :Bool;
  lease @3 :Int64;  # nanoseconds
  minWorkers @4 :UInt32;
  maxWorkers @5 :UInt32;
  rejoinTimeout @6 :Int64;  # nanoseconds
  stragglerTimeout @7 :Int64;  # nanoseconds
  incarnation @8 :UInt64;
}

struct JoinReply {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  headRank @2 :Int32 = -1;
  members @3 :List(MemberInfo);
  jobNonce @4 :Data;
  learner @5 :Bool;
  sequence @6 :UInt64;
  paused @7 :Bool;
  durable @8 :Bool;
}

struct GatheringReply {
  progress @0 :Text;
  missing @1 :Int32 = -1;
  storing @2 :Bool;
}

struct Watch {
  sequence @0 :UInt64;
}

struct WatchReply {
  sequence @0 :UInt64;
  view @1 :UInt64;
  cause @2 :Status;
  left @3 :Int32 = -1;
  departureCall @4 :UInt64;
  members @5 :List(MemberInfo);
  headRank @6 :Int32 = -1;
  paused @7 :Bool;
}

struct Renew {
  number @0 :Int32 = -1;
  view @1 :UInt64;
}

struct RenewReply {
  storing @0 :Bool;
}

struct Enter {
  number @0 :Int32 = -1;
  view @1 :UInt64;
}

struct Return {
  number @0 :Int32 = -1;
  view @1 :UInt64;
  incarnation @2 :UInt64;
}

struct Leave {
  view @0 :UInt64;
  number @1 :Int32 = -1;
  cause @2 :Status;
  departureCall @3 :UInt64;
}

struct Report {
  view @0 :UInt64;
  number @1 :Int32 = -1;
  cause @2 :Status;
}

struct ReportCut {
  view @0 :UInt64;
  number @1 :Int32 = -1;
  cause @2 :Status;
  peerNumber @3 :Int32 = -1;
}

struct Progress {
  number @0 :Int32 = -1;
  view @1 :UInt64;
  presentView @2 :UInt64;
  steps @3 :UInt64;
  activity @4 :UInt8;
  call @5 :UInt64;
  open @6 :Int64;  # nanoseconds
  operation @7 :Text;
  waiting @8 :Text;
  waitsFor @9 :List(Int32);
  holdsState @10 :Bool;
}

struct WorkerStatus {
  member @0 :MemberInfo;
  state @1 :UInt8;
  silence @2 :Int64;  # nanoseconds
  reported @3 :Bool;
  age @4 :Int64;  # nanoseconds
  stepsPerSecond @5 :Float64;
  progress @6 :Progress;
}

struct StatusReply {
  state @0 :UInt8;
  view @1 :UInt64;
  numWorkers @2 :UInt32;
  minWorkers @3 :UInt32;
  headRank @4 :Int32 = -1;
  cause @5 :Status;
  missing @6 :List(Int32);
  refused @7 :Text;
  workers @8 :List(WorkerStatus);
  maxWorkers @9 :UInt32;
  wantedWorkers @10 :UInt32;
  scaleRequests @11 :UInt32;
}

struct ScaleRequest {
  workers @0 :UInt32;
}

struct Goodbye {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  cause @2 :Status;
  steps @3 :UInt64;
  digests @4 :List(UInt64);
  departureCall @5 :UInt64;
}

struct OperationFailed {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  operation @2 :UInt64;
  cause @3 :Status;
}

struct SessionFailed {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  cause @2 :Status;
}

struct HasBegun {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  operation @2 :UInt64;
}

struct HasCompleted {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  steps @2 :UInt64;
}

struct FetchState {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  begin @2 :UInt64;
  end @3 :UInt64;
  next @4 :UInt64;
  signature @5 :UInt64;
  last @6 :Bool;
}

struct StateParts {
  struct Part {
    kind @0 :UInt8;
    parameter @1 :UInt32;
    begin @2 :UInt64;
    count @3 :UInt64;
    updates @4 :UInt64;
    learningRate @5 :Float64;
    rate @6 :Float64;
    decay @7 :Float64;
    divisor @8 :Float64;
    data @9 :Data;
  }
  parts @0 :List(Part);
  whole @1 :Bool;
  digest @2 :UInt64;
}

struct PutObject {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  name @2 :Text;
  put @3 :UInt64;
  total @4 :UInt64;
  data @5 :Data;
  dtype @6 :Int32 = -1;
  shape @7 :List(Int64);
  again @8 :Bool;
}

struct DeleteObject {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  name @2 :Text;
  put @3 :UInt64;
}

struct FetchObject {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  name @2 :Text;
  put @3 :UInt64;
  offset @4 :UInt64;
}

struct Message {
  union {
    empty @0 :Void;
    joinRequest @1 :JoinRequest;
    joinReply @2 :JoinReply;
    watch @3 :Watch;
    watchReply @4 :WatchReply;
    renew @5 :Renew;
    leave @6 :Leave;
    report @7 :Report;
    operationFailed @8 :OperationFailed;
    putObject @9 :PutObject;
    goodbye @10 :Goodbye;
    sessionFailed @11 :SessionFailed;
    hasBegun @12 :HasBegun;
    reportCut @13 :ReportCut;
    deleteObject @14 :DeleteObject;
    fetchObject @15 :FetchObject;
    enter @16 :Enter;
    hasCompleted @17 :HasCompleted;
    progress @18 :Progress;
    statusRequest @19 :Void;
    statusReply @20 :StatusReply;
    return @21 :Return;
    scaleRequest @22 :ScaleRequest;
    fetchState @23 :FetchState;
    stateParts @24 :StateParts;
    gatheringRequest @25 :Void;
    gatheringReply @26 :GatheringReply;
    renewReply @27 :RenewReply;
  }
}

struct Reply {  # the answer to a call: a message, or why there is none
  union {
    message @0 :Message;
    status @1 :Status;
  }
}

struct HeadRecord {  # kept on disk by the head
  struct Worker {
    info @0 :MemberInfo;
    joined @1 :UInt64;
    incarnation @2 :UInt64;
    learner @3 :Bool;
    left @4 :Bool;
    lost @5 :Bool;
    eviction @6 :Status;
    closed @7 :Bool;
    holdsState @8 :Bool;
  }
  job @0 :Text;
  address @1 :Text;
  lease @2 :Int64;  # nanoseconds
  numWorkers @3 :UInt32;
  minWorkers @4 :UInt32;
  maxWorkers @5 :UInt32;
  jobNonce @6 :Data;
  view @7 :UInt64;
  workers @8 :List(Worker);
  confirmed @9 :UInt64;
  news @10 :List(WatchReply);
  rejoinTimeout @11 :Int64;  # nanoseconds
  stragglerTimeout @12 :Int64;  # nanoseconds
  joined @13 :UInt32;
  tokenDigest @14 :Data;
  paused @15 :Bool;
  lastClosed @16 :Bool;
  endedWell @17 :Bool;
}

struct BulkHeader {
  view @0 :UInt64;
  operation @1 :UInt64;
  source @2 :Int32 = -1;
  kind @3 :UInt8;
  dtype @4 :UInt8;
  reduction @5 :UInt8;
  algorithm @6 :UInt8;
  root @7 :Int32 = -1;
  count @8 :UInt64;
  tag @9 :UInt64;
  phase @10 :UInt16;
  offset @11 :UInt64;
}

# Payloads: the bytes of a chunk where an operation exchanges more than elements of a dtype. payloads.h documents the
# fields.

struct DrawnShard {
  number @0 :UInt64;
  pass @1 :UInt64;
  epoch @2 :UInt64;
  begin @3 :UInt64;
  count @4 :UInt64;
}

struct DrawnSamples {
  made @0 :UInt64;
  shards @1 :List(DrawnShard);
}

struct StepHeader {
  step @0 :UInt64;
  strategyVersion @1 :UInt64;
  settings @2 :UInt64;
  plan @3 :UInt64;
  values @4 :UInt64;
  learningRate @5 :Float64;
  lossScale @6 :Float64;
  stop @7 :Bool;
  weights @8 :List(Float64);
  drawn @9 :DrawnSamples;  # null: no data shard
}

struct StartHeader {
  signature @0 :UInt64;
  signatureLength @1 :UInt64;
  replicas @2 :UInt32;
  gpus @3 :UInt32;
}

struct WorkerGpus {
  unusable @0 :Status;
  version @1 :Int32;
  devices @2 :List(Data);  # 16 bytes each
}

struct TeamInvitation {
  failure @0 :Status;
  communicator @1 :Data;  # 128 bytes; none with a failure
}

struct ScheduleDigest {
  digest @0 :UInt64;
  failure @1 :Status;
}

struct OperationCounts {
  chunkBytes @0 :UInt64;
  counts @1 :List(UInt64);
}

struct ValueDigests {
  digests @0 :List(UInt64);
}

struct NonFiniteGradient {
  parameter @0 :UInt32;
  count @1 :UInt64;
  first @2 :UInt64;
}

struct GradientReport {
  count @0 :UInt64;
  parameters @1 :UInt32;
  named @2 :List(NonFiniteGradient);
}

struct ViewReport {
  steps @0 :UInt64;
  replicas @1 :UInt32;
  lossScale @2 :Float64;
  lossScaleAge @3 :UInt32;
  weight @4 :Float64;
  gradientNorm @5 :Float64;
  applied @6 :Bool;
  allDone @7 :Bool;
  stop @8 :Bool;
  skipped @9 :Bool;
  nonfinite @10 :Int64;
  nonfiniteRank @11 :Int32 = -1;
  nonfiniteParameter @12 :UInt32;
  calls @13 :List(UInt64);
  started @14 :Bool;
  strategyVersion @15 :UInt64;
  view @16 :Int64;  # of the last step
  size @17 :Int32;
  learner @18 :Bool;
  signature @19 :UInt64;
  signatureLength @20 :UInt64;
  samples @21 :Data;  # a SampleReport
  held @22 :Data;  # a bit for each key range
  learningRate @23 :Float64;
  loads @24 :UInt64;
  loadResult @25 :Int32;  # as in Status
  appliedChange @26 :UInt64;  # call numbers
  preparedChange @27 :UInt64;
}

struct SamplePart {
  worker @0 :UInt64;
  slot @1 :UInt32;
  taken @2 :UInt64;
  base @3 :UInt64;
  held @4 :UInt64;
  runs @5 :List(UInt64);  # first, stride and count of each
}

struct SampleLedger {
  number @0 :UInt64;
  samples @1 :UInt64;
  seed @2 :UInt64;
  shuffle @3 :Bool;
  pass @4 :UInt64;
  epoch @5 :UInt64;
  begin @6 :UInt64;
  view @7 :UInt64;
  dealt @8 :Bool;
  tail @9 :UInt64;
  slots @10 :UInt32;
  parts @11 :List(SamplePart);
}

struct LostWorkerSamples {
  worker @0 :UInt64;
  committed @1 :DrawnSamples;
}

struct SampleReport {
  joined @0 :Bool;
  drawn @1 :DrawnSamples;
  committed @2 :DrawnSamples;
  step @3 :DrawnSamples;
  lost @4 :List(LostWorkerSamples);
  ledgers @5 :List(SampleLedger);
}

struct CheckpointReport {
  failure @0 :Status;
  step @1 :UInt64;
  nbytes @2 :UInt64;
  checksum @3 :UInt64;
  drawn @4 :DrawnSamples;
}

interface Wire {
  # The one object that the accepting side of a connection serves. Results carry a Status of their own, because an RPC
  # exception has no room for the rank, host, operation and parameter of an error.

  call @0 (message :Message) -> (reply :Reply);

  push @1 (header :BulkHeader, data :Data) -> (status :Status);
  # `data` is the last pointer of the params, so that a sender can attach an external segment which holds it and nothing
  # else, and a receiver can read that segment straight to its destination. Answered when the receiver has finished the chunk.
}

@0x9d3a5cb2f1e60847;
# The messages between the processes of a job. transport/messages.h documents the fields; codec_capnp.h converts between
# both forms. Fields and union members are only ever appended.

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
}

struct JoinRequest {
  member @0 :MemberInfo;
  numWorkers @1 :UInt32;
  hostsHead @2 :Bool;
  lease @3 :Int64;  # nanoseconds
}

struct JoinReply {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  headRank @2 :Int32 = -1;
  members @3 :List(MemberInfo);
  jobNonce @4 :Data;
}

struct Watch {
  sequence @0 :UInt64;
}

struct WatchReply {
  sequence @0 :UInt64;
  view @1 :UInt64;
  news @2 :Status;
  left @3 :Int32 = -1;
  departureCall @4 :UInt64;
}

struct Renew {
  rank @0 :Int32 = -1;
  view @1 :UInt64;
}

struct Leave {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  cause @2 :Status;
  departureCall @3 :UInt64;
}

struct Report {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  cause @2 :Status;
}

struct ReportCut {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  cause @2 :Status;
  peer @3 :Int32 = -1;
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

struct PutObject {
  view @0 :UInt64;
  rank @1 :Int32 = -1;
  name @2 :Text;
  put @3 :UInt64;
  total @4 :UInt64;
  data @5 :Data;
  dtype @6 :Int32 = -1;
  shape @7 :List(Int64);
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
  }
}

struct Reply {  # the answer to a call: a message, or why there is none
  union {
    message @0 :Message;
    status @1 :Status;
  }
}

struct BulkHeader {
  view @0 :UInt64;
  operation @1 :UInt64;
  group @2 :UInt32;
  source @3 :Int32 = -1;
  kind @4 :UInt8;
  dtype @5 :UInt8;
  reduction @6 :UInt8;
  algorithm @7 :UInt8;
  root @8 :Int32 = -1;
  count @9 :UInt64;
  tag @10 :UInt64;
  phase @11 :UInt16;
  offset @12 :UInt64;
}

# Payloads: the bytes of a chunk where an operation exchanges more than elements of a dtype. payloads.h documents the
# fields.

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

interface Wire {
  # The one object that the accepting side of a connection serves. Results carry a Status of their own, because an RPC
  # exception has no room for the rank, host, operation and parameter of an error.

  call @0 (message :Message) -> (reply :Reply);

  push @1 (header :BulkHeader, data :Data) -> (status :Status);
  # `data` is the last pointer of the params, so that a sender can attach an external segment which holds it and nothing
  # else, and a receiver can read that segment straight to its place. Answered when the receiver has finished the chunk.
}

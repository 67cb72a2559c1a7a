// The codec of payloads (transport/payloads.h).

#include <capnp/message.h>
#include <kj/exception.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/payloads.h"
#include "transport/schema/codec_capnp.h"
#include "transport/schema/field_reader.h"
#include "transport/schema/fields.h"
#include "transport/schema/framing.h"

namespace dsgd::transport {

class PayloadWriter : public FieldWriter {};

// Functions are static where argument-dependent lookup has to find them: it does not look into anonymous
// namespaces.

// The code and the message; the receiver knows the rank, and has an operation of its own.
static void fields(PayloadWriter&, const Status& from, schema::Status::Builder to) {
  std::string message = from.message();
  if (message.size() > kMaxReasonBytes) {
    size_t end = kMaxReasonBytes;  // or less: no half character of UTF-8
    while (end > 0 && (static_cast<uint8_t>(message[end]) & 0xc0) == 0x80) --end;
    message.resize(end);
  }
  write(Status(from.code(), std::move(message)), to);
}

static bool present(const DrawnSamples& drawn) { return drawn.made != 0 || !drawn.shards.empty(); }

void fields(auto& codec, Is<DrawnSamples::Shard> auto& value, auto part) {
  DSGD_FIELD(Number, number);
  DSGD_FIELD(Pass, pass);
  DSGD_FIELD(Epoch, epoch);
  DSGD_FIELD(Begin, begin);
  DSGD_FIELD(Count, count);
}

void fields(auto& codec, Is<DrawnSamples> auto& value, auto part) {
  DSGD_FIELD(Made, made);
  DSGD_LIST(Shards, shards, "list of data shards", kMaxShards);
}

void fields(auto& codec, Is<StepHeader> auto& value, auto part) {
  DSGD_FIELD(Step, step);
  DSGD_FIELD(StrategyVersion, strategy_version);
  DSGD_FIELD(Settings, settings);
  DSGD_FIELD(Plan, plan);
  DSGD_FIELD(Values, values);
  DSGD_FIELD(LearningRate, learning_rate);
  DSGD_FIELD(LossScale, loss_scale);
  DSGD_FIELD(Stop, stop);
  DSGD_LIST(Weights, weights, "list of weights", kMaxReplicas);
  DSGD_STRUCT(Drawn, drawn);
}

void fields(auto& codec, Is<StartHeader> auto& value, auto part) {
  DSGD_FIELD(Signature, signature);
  DSGD_FIELD(SignatureLength, signature_length);
  DSGD_FIELD(Replicas, replicas, "a worker", kMaxReplicas, "replicas");
  DSGD_FIELD(Gpus, gpus, "a worker", value.replicas, "GPUs");
}

void fields(auto& codec, Is<WorkerGpus> auto& value, auto part) {
  DSGD_STRUCT(Unusable, unusable);
  DSGD_FIELD(Version, version);
  DSGD_LIST(Devices, devices, "list of GPUs", kMaxReplicas, "identity of a GPU");
}

void fields(auto& codec, Is<TeamInvitation> auto& value, auto part) {
  DSGD_STRUCT(Failure, failure);
  if (value.failure.ok()) DSGD_FIELD(Communicator, communicator, "communicator");
}

void fields(auto& codec, Is<ScheduleDigest> auto& value, auto part) {
  DSGD_FIELD(Digest, digest);
  DSGD_STRUCT(Failure, failure);
}

void fields(auto& codec, Is<OperationCounts> auto& value, auto part) {
  DSGD_FIELD(ChunkBytes, chunk_bytes);
  DSGD_LIST(Counts, counts, "list of counts", kMaxMembers);
}

void fields(auto& codec, Is<ValueDigests> auto& value, auto part) {
  DSGD_LIST(Digests, digests, "list of digests", kMaxDigests);
}

void fields(auto& codec, Is<GradientReport::OfParameter> auto& value, auto part) {
  DSGD_FIELD(Parameter, parameter);
  DSGD_FIELD(Count, count);
  DSGD_FIELD(First, first);
}

void fields(auto& codec, Is<GradientReport> auto& value, auto part) {
  DSGD_FIELD(Count, count);
  DSGD_FIELD(Parameters, parameters);
  DSGD_LIST(Named, named, "list of gradients", kMaxNamedGradients);
}

void fields(auto& codec, Is<ViewReport> auto& value, auto part) {
  DSGD_FIELD(Started, started);
  DSGD_FIELD(Steps, steps);
  DSGD_FIELD(StrategyVersion, strategy_version);
  DSGD_FIELD(Replicas, replicas);
  DSGD_FIELD(LossScale, loss_scale);
  DSGD_FIELD(LossScaleAge, loss_scale_age);
  DSGD_FIELD(View, outcome.view);
  DSGD_FIELD(Size, outcome.size);
  DSGD_FIELD(Weight, outcome.weight);
  DSGD_FIELD(GradientNorm, outcome.gradient_norm);
  DSGD_FIELD(Applied, outcome.applied);
  DSGD_FIELD(AllDone, outcome.all_done);
  DSGD_FIELD(Stop, outcome.stop);
  DSGD_FIELD(Skipped, outcome.skipped);
  DSGD_FIELD(Nonfinite, outcome.nonfinite);
  DSGD_FIELD(NonfiniteRank, outcome.nonfinite_rank);
  DSGD_FIELD(NonfiniteParameter, outcome.nonfinite_parameter);
  DSGD_LIST(Calls, calls, "list of calls", kMaxChannels);
  DSGD_FIELD(Learner, learner);
  DSGD_FIELD(Signature, signature);
  DSGD_FIELD(SignatureLength, signature_length);
  DSGD_FIELD(Samples, samples, "report of samples", kNoLimit);
  DSGD_FIELD(Held, held, "list of key ranges", kNoLimit);
  DSGD_FIELD(LearningRate, learning_rate);
  DSGD_FIELD(Loads, loads);
  DSGD_FIELD(LoadResult, load_result);
  DSGD_FIELD(AppliedChange, applied_change);
  DSGD_FIELD(PreparedChange, prepared_change);
}

void fields(auto& codec, Is<SampleReport::Lost> auto& value, auto part) {
  DSGD_FIELD(Worker, worker);
  DSGD_STRUCT(Committed, committed);
}

// Each run is three numbers.
static void write_runs(const std::vector<SampleRun>& from, capnp::List<uint64_t>::Builder to) {
  for (unsigned i = 0; i < from.size(); ++i) {
    to.set(3 * i, from[i].first);
    to.set(3 * i + 1, from[i].stride);
    to.set(3 * i + 2, from[i].count);
  }
}

static void read_runs(FieldReader& reader, capnp::List<uint64_t>::Reader from, std::vector<SampleRun>* to) {
  if (!reader.ok() || !reader.length(from.size(), kMaxMembers, "list of runs of samples", "numbers")) return;
  if (from.size() % 3 != 0) return reader.fail("list of runs of samples is cut");
  for (unsigned i = 0; i < from.size(); i += 3) to->push_back({from[i], from[i + 1], from[i + 2]});
}

void fields(auto& codec, Is<SampleLedger::Part> auto& value, auto part) {
  DSGD_FIELD(Worker, worker);
  DSGD_FIELD(Slot, slot);
  DSGD_FIELD(Taken, taken);
  DSGD_FIELD(Base, base);
  DSGD_FIELD(Held, held);
  if constexpr (kReads<decltype(codec)>) {
    read_runs(codec, part.getRuns(), &value.runs);
  } else {
    write_runs(value.runs, part.initRuns(static_cast<unsigned>(3 * value.runs.size())));
  }
}

void fields(auto& codec, Is<SampleLedger> auto& value, auto part) {
  DSGD_FIELD(Number, number);
  DSGD_FIELD(Samples, samples);
  DSGD_FIELD(Seed, seed);
  DSGD_FIELD(Shuffle, shuffle);
  DSGD_FIELD(Pass, pass);
  DSGD_FIELD(Epoch, epoch);
  DSGD_FIELD(Begin, begin);
  DSGD_FIELD(View, view);
  DSGD_FIELD(Dealt, dealt);
  DSGD_FIELD(Tail, tail);
  DSGD_FIELD(Slots, slots);
  DSGD_LIST(Parts, parts, "list of parts of a ledger", kMaxMembers);
}

void fields(auto& codec, Is<SampleReport> auto& value, auto part) {
  DSGD_FIELD(Joined, joined);
  DSGD_STRUCT(Drawn, drawn);
  DSGD_STRUCT(Committed, committed);
  DSGD_STRUCT(Step, step);
  DSGD_LIST(Lost, lost, "list of lost workers", kMaxMembers);
  DSGD_LIST(Ledgers, ledgers, "list of ledgers", kMaxLedgers);
}

void fields(auto& codec, Is<CheckpointReport> auto& value, auto part) {
  DSGD_STRUCT(Failure, failure);
  DSGD_FIELD(Step, step);
  DSGD_FIELD(Nbytes, nbytes);
  DSGD_FIELD(Checksum, checksum);
  DSGD_STRUCT(Drawn, drawn);
}

namespace {

// A small payload takes no allocation of its own. Throws std::bad_alloc only.
template <typename Root, typename T>
std::vector<std::byte> encode_payload(const T& value) {
  capnp::word scratch[64] = {};
  capnp::MallocMessageBuilder builder(kj::arrayPtr(scratch, std::size(scratch)));
  PayloadWriter writer;
  try {
    fields(writer, value, builder.initRoot<Root>());
  } catch (const kj::Exception&) {  // no memory for a further segment
    throw std::bad_alloc();
  }
  return bytes_of<std::byte>(builder);
}

template <typename Root, typename T>
Result<T> decode_payload(std::span<const std::byte> bytes) {
  T value;
  Status status = open<Root>(bytes, kMaxPayloadBytes, [&](typename Root::Reader root) {
    FieldReader reader;
    reader.read(root, &value);
    return reader.status();
  });
  if (!status.ok()) return status;
  return value;
}

}  // namespace

// Defines encode(const StepHeader&), decode_step_header() and so on.
#define DSGD_PAYLOAD(Type, name)                                                                       \
  std::vector<std::byte> encode(const Type& payload) { return encode_payload<schema::Type>(payload); } \
  Result<Type> decode_##name(std::span<const std::byte> bytes) {                                       \
    return decode_payload<schema::Type, Type>(bytes);                                                  \
  }
DSGD_PAYLOAD(StepHeader, step_header)
DSGD_PAYLOAD(StartHeader, start_header)
DSGD_PAYLOAD(WorkerGpus, worker_gpus)
DSGD_PAYLOAD(TeamInvitation, team_invitation)
DSGD_PAYLOAD(ScheduleDigest, schedule_digest)
DSGD_PAYLOAD(OperationCounts, operation_counts)
DSGD_PAYLOAD(ValueDigests, value_digests)
DSGD_PAYLOAD(GradientReport, gradient_report)
DSGD_PAYLOAD(ViewReport, view_report)
DSGD_PAYLOAD(SampleReport, sample_report)
DSGD_PAYLOAD(CheckpointReport, checkpoint_report)
#undef DSGD_PAYLOAD

}  // namespace dsgd::transport

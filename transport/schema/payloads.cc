// The codec of payloads (transport/payloads.h).

#include <array>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "transport/schema/codec_capnp.h"
#include "transport/schema/framing.h"

namespace dsgd::transport {
namespace {

// The code and the message; the receiver knows the rank, and has an operation of its own.
void write_reason(const Status& from, schema::Status::Builder to) {
  std::string message = from.message();
  if (message.size() > kMaxReasonBytes) {
    size_t end = kMaxReasonBytes;
    while (end > 0 && (static_cast<uint8_t>(message[end]) & 0xc0) == 0x80)
      --end;  // no half character of UTF-8
    message.resize(end);
  }
  write(Status(from.code(), std::move(message)), to);
}

// Throws std::bad_alloc, which is no fault of the sender.
template <typename T, typename Root, typename Read>
Result<T> decode_payload(std::span<const std::byte> bytes, Read&& read_fields) {
  T value;
  bool exhausted = false;
  Status status = open<Root>(bytes, kMaxPayloadBytes, [&](typename Root::Reader root) {
    Check check;
    try {
      read_fields(check, root, &value);
    } catch (const std::bad_alloc&) {
      exhausted = true;
    }
    return check.status();
  });
  if (exhausted) throw std::bad_alloc();
  if (!status.ok()) return status;
  return value;
}

}  // namespace

std::vector<std::byte> encode(const StepHeader& header) {
  return build_payload<schema::StepHeader>([&](schema::StepHeader::Builder to) {
    to.setStep(header.step);
    to.setStrategyVersion(header.strategy_version);
    to.setSettings(header.settings);
    to.setPlan(header.plan);
    to.setValues(header.values);
    to.setLearningRate(header.learning_rate);
    to.setLossScale(header.loss_scale);
    to.setStop(header.stop);
    to.setWeights(kj::arrayPtr(header.weights.data(), header.weights.size()));
  });
}

Result<StepHeader> decode_step_header(std::span<const std::byte> bytes) {
  return decode_payload<StepHeader, schema::StepHeader>(bytes, [](Check& check, auto from, StepHeader* to) {
    to->step = from.getStep();
    to->strategy_version = from.getStrategyVersion();
    to->settings = from.getSettings();
    to->plan = from.getPlan();
    to->values = from.getValues();
    to->learning_rate = from.getLearningRate();
    to->loss_scale = from.getLossScale();
    to->stop = from.getStop();
    check.numbers(from.getWeights(), &to->weights, kMaxReplicas, "list of weights");
  });
}

std::vector<std::byte> encode(const StartHeader& header) {
  return build_payload<schema::StartHeader>([&](schema::StartHeader::Builder to) {
    to.setSignature(header.signature);
    to.setSignatureLength(header.signature_length);
    to.setReplicas(header.replicas);
    to.setGpus(header.gpus);
  });
}

Result<StartHeader> decode_start_header(std::span<const std::byte> bytes) {
  return decode_payload<StartHeader, schema::StartHeader>(
      bytes, [](Check& check, auto from, StartHeader* to) {
        to->signature = from.getSignature();
        to->signature_length = from.getSignatureLength();
        to->replicas = from.getReplicas();
        to->gpus = from.getGpus();
        check.length(to->replicas, kMaxReplicas, "a worker", "replicas");
        check.length(to->gpus, to->replicas, "a worker", "GPUs");
      });
}

std::vector<std::byte> encode(const WorkerGpus& gpus) {
  return build_payload<schema::WorkerGpus>([&](schema::WorkerGpus::Builder to) {
    if (!gpus.unusable.ok()) write_reason(gpus.unusable, to.initUnusable());
    to.setVersion(gpus.version);
    auto devices = to.initDevices(static_cast<unsigned>(gpus.devices.size()));
    for (unsigned i = 0; i < devices.size(); ++i)
      devices.set(i, capnp::Data::Reader(gpus.devices[i].data(), gpus.devices[i].size()));
  });
}

Result<WorkerGpus> decode_worker_gpus(std::span<const std::byte> bytes) {
  return decode_payload<WorkerGpus, schema::WorkerGpus>(bytes, [](Check& check, auto from, WorkerGpus* to) {
    check.status(from.getUnusable(), &to->unusable);
    to->version = from.getVersion();
    const auto devices = from.getDevices();
    if (!check.ok() || !check.length(devices.size(), kMaxReplicas, "list of GPUs", "entries")) return;
    for (const auto device : devices) {
      if (!check.ok()) return;
      check.fixed(device, &to->devices.emplace_back(), "identity of a GPU");
    }
  });
}

std::vector<std::byte> encode(const TeamInvitation& invitation) {
  return build_payload<schema::TeamInvitation>([&](schema::TeamInvitation::Builder to) {
    if (!invitation.failure.ok()) return write_reason(invitation.failure, to.initFailure());
    to.setCommunicator(capnp::Data::Reader(invitation.communicator.data(), invitation.communicator.size()));
  });
}

Result<TeamInvitation> decode_team_invitation(std::span<const std::byte> bytes) {
  return decode_payload<TeamInvitation, schema::TeamInvitation>(
      bytes, [](Check& check, auto from, TeamInvitation* to) {
        check.status(from.getFailure(), &to->failure);
        if (to->failure.ok()) check.fixed(from.getCommunicator(), &to->communicator, "communicator");
      });
}

std::vector<std::byte> encode(const ScheduleDigest& digest) {
  return build_payload<schema::ScheduleDigest>([&](schema::ScheduleDigest::Builder to) {
    to.setDigest(digest.digest);
    if (!digest.failure.ok()) write_reason(digest.failure, to.initFailure());
  });
}

Result<ScheduleDigest> decode_schedule_digest(std::span<const std::byte> bytes) {
  return decode_payload<ScheduleDigest, schema::ScheduleDigest>(
      bytes, [](Check& check, auto from, ScheduleDigest* to) {
        to->digest = from.getDigest();
        check.status(from.getFailure(), &to->failure);
      });
}

std::vector<std::byte> encode(const OperationCounts& counts) {
  return build_payload<schema::OperationCounts>([&](schema::OperationCounts::Builder to) {
    to.setChunkBytes(counts.chunk_bytes);
    to.setCounts(kj::arrayPtr(counts.counts.data(), counts.counts.size()));
  });
}

Result<OperationCounts> decode_operation_counts(std::span<const std::byte> bytes) {
  return decode_payload<OperationCounts, schema::OperationCounts>(
      bytes, [](Check& check, auto from, OperationCounts* to) {
        to->chunk_bytes = from.getChunkBytes();
        check.numbers(from.getCounts(), &to->counts, kMaxMembers, "list of counts");
      });
}

std::vector<std::byte> encode(const ValueDigests& digests) {
  return build_payload<schema::ValueDigests>([&](schema::ValueDigests::Builder to) {
    to.setDigests(kj::arrayPtr(digests.digests.data(), digests.digests.size()));
  });
}

Result<ValueDigests> decode_value_digests(std::span<const std::byte> bytes) {
  return decode_payload<ValueDigests, schema::ValueDigests>(
      bytes, [](Check& check, auto from, ValueDigests* to) {
        check.numbers(from.getDigests(), &to->digests, kMaxDigests, "list of digests");
      });
}

}  // namespace dsgd::transport

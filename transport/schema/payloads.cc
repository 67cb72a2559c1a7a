// The codec of payloads (transport/payloads.h).

#include <array>
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

template <typename T, typename Root, typename Read>
Result<T> decode_payload(std::span<const std::byte> bytes, Read&& read_fields) {
  T value;
  Status status = open<Root>(bytes, kMaxPayloadBytes, [&](typename Root::Reader root) {
    Check check;
    read_fields(check, root, &value);
    return check.status();
  });
  if (!status.ok()) return status;
  return value;
}

bool empty(const DrawnSamples& drawn) { return drawn.made == 0 && drawn.shards.empty(); }

void write_drawn(const DrawnSamples& from, schema::DrawnSamples::Builder to) {
  to.setMade(from.made);
  auto shards = to.initShards(static_cast<unsigned>(from.shards.size()));
  for (unsigned i = 0; i < shards.size(); ++i) {
    shards[i].setNumber(from.shards[i].number);
    shards[i].setPass(from.shards[i].pass);
    shards[i].setEpoch(from.shards[i].epoch);
    shards[i].setBegin(from.shards[i].begin);
    shards[i].setCount(from.shards[i].count);
  }
}

void read_drawn(Check& check, schema::DrawnSamples::Reader from, DrawnSamples* to) {
  to->made = from.getMade();
  const auto shards = from.getShards();
  if (!check.ok() || !check.length(shards.size(), kMaxShards, "list of data shards", "entries")) return;
  for (const auto shard : shards)
    to->shards.push_back(
        {shard.getNumber(), shard.getPass(), shard.getEpoch(), shard.getBegin(), shard.getCount()});
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
    if (!empty(header.drawn)) write_drawn(header.drawn, to.initDrawn());
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
    read_drawn(check, from.getDrawn(), &to->drawn);
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

std::vector<std::byte> encode(const GradientReport& report) {
  return build_payload<schema::GradientReport>([&](schema::GradientReport::Builder to) {
    to.setCount(report.count);
    to.setParameters(report.parameters);
    auto named = to.initNamed(static_cast<unsigned>(report.named.size()));
    for (unsigned i = 0; i < named.size(); ++i) {
      named[i].setParameter(report.named[i].parameter);
      named[i].setCount(report.named[i].count);
      named[i].setFirst(report.named[i].first);
    }
  });
}

Result<GradientReport> decode_gradient_report(std::span<const std::byte> bytes) {
  return decode_payload<GradientReport, schema::GradientReport>(
      bytes, [](Check& check, auto from, GradientReport* to) {
        to->count = from.getCount();
        to->parameters = from.getParameters();
        const auto named = from.getNamed();
        if (!check.length(named.size(), kMaxNamedGradients, "list of gradients", "entries")) return;
        for (const auto gradient : named)
          to->named.push_back({gradient.getParameter(), gradient.getCount(), gradient.getFirst()});
      });
}

std::vector<std::byte> encode(const ViewReport& report) {
  return build_payload<schema::ViewReport>([&](schema::ViewReport::Builder to) {
    to.setStarted(report.started);
    to.setSteps(report.steps);
    to.setStrategyVersion(report.strategy_version);
    to.setReplicas(report.replicas);
    to.setLossScale(report.loss_scale);
    to.setLossScaleAge(report.loss_scale_age);
    to.setView(report.outcome.view);
    to.setSize(report.outcome.size);
    to.setWeight(report.outcome.weight);
    to.setGradientNorm(report.outcome.gradient_norm);
    to.setApplied(report.outcome.applied);
    to.setAllDone(report.outcome.all_done);
    to.setStop(report.outcome.stop);
    to.setSkipped(report.outcome.skipped);
    to.setNonfinite(report.outcome.nonfinite);
    to.setNonfiniteRank(report.outcome.nonfinite_rank);
    to.setNonfiniteParameter(report.outcome.nonfinite_parameter);
    auto calls = to.initCalls(static_cast<unsigned>(report.calls.size()));
    for (unsigned i = 0; i < calls.size(); ++i) calls.set(i, report.calls[i]);
    to.setLearner(report.learner);
    to.setSignature(report.signature);
    to.setSignatureLength(report.signature_length);
    if (!report.samples.empty())
      to.setSamples(capnp::Data::Reader(report.samples.data(), report.samples.size()));
    if (!report.held.empty()) to.setHeld(capnp::Data::Reader(report.held.data(), report.held.size()));
    to.setLearningRate(report.learning_rate);
    to.setLoads(report.loads);
    to.setLoadResult(static_cast<int32_t>(report.load_result));
    to.setAppliedChange(report.applied_change);
    to.setPreparedChange(report.prepared_change);
  });
}

Result<ViewReport> decode_view_report(std::span<const std::byte> bytes) {
  return decode_payload<ViewReport, schema::ViewReport>(bytes, [](Check& check, auto from, ViewReport* to) {
    to->started = from.getStarted();
    to->steps = from.getSteps();
    to->strategy_version = from.getStrategyVersion();
    to->replicas = from.getReplicas();
    to->loss_scale = from.getLossScale();
    to->loss_scale_age = from.getLossScaleAge();
    to->outcome.view = from.getView();
    to->outcome.size = from.getSize();
    to->outcome.weight = from.getWeight();
    to->outcome.gradient_norm = from.getGradientNorm();
    to->outcome.applied = from.getApplied();
    to->outcome.all_done = from.getAllDone();
    to->outcome.stop = from.getStop();
    to->outcome.skipped = from.getSkipped();
    to->outcome.nonfinite = from.getNonfinite();
    to->outcome.nonfinite_rank = from.getNonfiniteRank();
    to->outcome.nonfinite_parameter = from.getNonfiniteParameter();
    check.numbers(from.getCalls(), &to->calls, kMaxChannels, "list of calls");
    to->learner = from.getLearner();
    to->applied_change = from.getAppliedChange();
    to->prepared_change = from.getPreparedChange();
    to->signature = from.getSignature();
    to->signature_length = from.getSignatureLength();
    to->samples.assign(from.getSamples().begin(), from.getSamples().end());
    to->held.assign(from.getHeld().begin(), from.getHeld().end());
    to->learning_rate = from.getLearningRate();
    to->loads = from.getLoads();
    to->load_result = code_of(from.getLoadResult());
  });
}

std::vector<std::byte> encode(const SampleReport& report) {
  return build_payload<schema::SampleReport>([&](schema::SampleReport::Builder to) {
    to.setJoined(report.joined);
    write_drawn(report.drawn, to.initDrawn());
    write_drawn(report.committed, to.initCommitted());
    write_drawn(report.step, to.initStep());
    auto lost = to.initLost(static_cast<unsigned>(report.lost.size()));
    for (unsigned i = 0; i < lost.size(); ++i) {
      lost[i].setWorker(report.lost[i].worker);
      write_drawn(report.lost[i].committed, lost[i].initCommitted());
    }
    auto ledgers = to.initLedgers(static_cast<unsigned>(report.ledgers.size()));
    for (unsigned i = 0; i < ledgers.size(); ++i) {
      const SampleLedger& ledger = report.ledgers[i];
      ledgers[i].setNumber(ledger.number);
      ledgers[i].setSamples(ledger.samples);
      ledgers[i].setSeed(ledger.seed);
      ledgers[i].setShuffle(ledger.shuffle);
      ledgers[i].setPass(ledger.pass);
      ledgers[i].setEpoch(ledger.epoch);
      ledgers[i].setBegin(ledger.begin);
      ledgers[i].setView(ledger.view);
      ledgers[i].setDealt(ledger.dealt);
      ledgers[i].setTail(ledger.tail);
      ledgers[i].setSlots(ledger.slots);
      auto parts = ledgers[i].initParts(static_cast<unsigned>(ledger.parts.size()));
      for (unsigned k = 0; k < parts.size(); ++k) {
        const SampleLedger::Part& part = ledger.parts[k];
        parts[k].setWorker(part.worker);
        parts[k].setSlot(part.slot);
        parts[k].setTaken(part.taken);
        parts[k].setBase(part.base);
        parts[k].setHeld(part.held);
        auto runs = parts[k].initRuns(static_cast<unsigned>(3 * part.runs.size()));
        for (unsigned r = 0; r < part.runs.size(); ++r) {
          runs.set(3 * r, part.runs[r].first);
          runs.set(3 * r + 1, part.runs[r].stride);
          runs.set(3 * r + 2, part.runs[r].count);
        }
      }
    }
  });
}

Result<SampleReport> decode_sample_report(std::span<const std::byte> bytes) {
  const auto read_part = [](Check& check, schema::SamplePart::Reader from, SampleLedger::Part* to) {
    to->worker = from.getWorker();
    to->slot = from.getSlot();
    to->taken = from.getTaken();
    to->base = from.getBase();
    to->held = from.getHeld();
    const auto runs = from.getRuns();
    if (!check.length(runs.size(), kMaxMembers, "list of runs of samples", "numbers")) return;
    if (runs.size() % 3 != 0) return check.fail("list of runs of samples is cut");
    for (unsigned r = 0; r < runs.size(); r += 3) to->runs.push_back({runs[r], runs[r + 1], runs[r + 2]});
  };
  return decode_payload<SampleReport, schema::SampleReport>(
      bytes, [&](Check& check, auto from, SampleReport* to) {
        to->joined = from.getJoined();
        read_drawn(check, from.getDrawn(), &to->drawn);
        read_drawn(check, from.getCommitted(), &to->committed);
        read_drawn(check, from.getStep(), &to->step);
        const auto lost = from.getLost();
        if (!check.ok() || !check.length(lost.size(), kMaxMembers, "list of lost workers", "entries")) return;
        for (const auto worker : lost) {
          to->lost.push_back({worker.getWorker(), {}});
          read_drawn(check, worker.getCommitted(), &to->lost.back().committed);
          if (!check.ok()) return;
        }
        const auto ledgers = from.getLedgers();
        if (!check.length(ledgers.size(), kMaxLedgers, "list of ledgers", "entries")) return;
        for (const auto ledger : ledgers) {
          SampleLedger& read = to->ledgers.emplace_back();
          read.number = ledger.getNumber();
          read.samples = ledger.getSamples();
          read.seed = ledger.getSeed();
          read.shuffle = ledger.getShuffle();
          read.pass = ledger.getPass();
          read.epoch = ledger.getEpoch();
          read.begin = ledger.getBegin();
          read.view = ledger.getView();
          read.dealt = ledger.getDealt();
          read.tail = ledger.getTail();
          read.slots = ledger.getSlots();
          const auto parts = ledger.getParts();
          if (!check.length(parts.size(), kMaxMembers, "list of parts of a ledger", "entries")) return;
          for (const auto part : parts) {
            read_part(check, part, &read.parts.emplace_back());
            if (!check.ok()) return;
          }
        }
      });
}

std::vector<std::byte> encode(const CheckpointReport& report) {
  return build_payload<schema::CheckpointReport>([&](schema::CheckpointReport::Builder to) {
    if (!report.failure.ok()) write_reason(report.failure, to.initFailure());
    to.setStep(report.step);
    to.setNbytes(report.nbytes);
    to.setChecksum(report.checksum);
    if (!empty(report.drawn)) write_drawn(report.drawn, to.initDrawn());
  });
}

Result<CheckpointReport> decode_checkpoint_report(std::span<const std::byte> bytes) {
  return decode_payload<CheckpointReport, schema::CheckpointReport>(
      bytes, [](Check& check, auto from, CheckpointReport* to) {
        check.status(from.getFailure(), &to->failure);
        to->step = from.getStep();
        to->nbytes = from.getNbytes();
        to->checksum = from.getChecksum();
        read_drawn(check, from.getDrawn(), &to->drawn);
      });
}

}  // namespace dsgd::transport

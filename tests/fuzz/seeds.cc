// seeds NAME DIRECTORY: writes a small corpus of right inputs for the fuzz program NAME, one file each.
#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>
#include <cstring>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/membership/head_file.h"
#include "transport/schema/codec.h"
#include "transport/schema/codec_capnp.h"

using namespace dsgd;
using namespace dsgd::transport;
using namespace std::string_literals;

namespace {

using Bytes = std::vector<uint8_t>;

Status problem() {
  return Status(Code::kWorkerLost, "worker 3 was lost").with_rank(3, "node3").with_operation("step 7");
}

std::vector<Message> messages() {
  const MemberInfo member{1, "w1", "node1", "boot", {"10.0.0.1:7700", "unix:/run/x"}, 99, 1};
  const Progress progress{
      1, 1, 2, 17, Progress::Activity::kWaits, 5, std::chrono::seconds(3), "step 17", "rank 2", {2, 4}, true};
  return {Empty{},
          progress,
          StatusRequest{},
          ScaleRequest{3},
          StatusReply{StatusReply::State::kRunning,
                      2,
                      4,
                      2,
                      8,
                      5,
                      1,
                      0,
                      problem(),
                      {1},
                      "no",
                      {{member, WorkerStatus::State::kRunning, std::chrono::seconds(1), true,
                        std::chrono::seconds(2), 3.5, progress},
                       {member, WorkerStatus::State::kLost}}},
          JoinRequest{member, 4, true, std::chrono::seconds(10), 2, 8, std::chrono::seconds(90),
                      std::chrono::seconds(60), 99},
          JoinReply{1, 1, 0, {member, member}, "job nonce", true, 3, false, true},
          GatheringRequest{},
          GatheringReply{"1 of 2 workers have joined", 1, true},
          Watch{3},
          WatchReply{4, 1, problem(), 2, 7, {member, member}, 1, true},
          Renew{1, 1},
          RenewReply{true},
          Leave{1, 1, problem(), 7},
          Report{1, 1, problem()},
          ReportCut{1, 1, problem(), 2},
          OperationFailed{1, 1, 17, problem()},
          PutObject{1, 1, "name", 7, 100, {1, 2, 3, 4, 5}, 4, {10, 10}},
          DeleteObject{1, 0, "name", 7},
          FetchObject{1, 0, "name", 7, 4096},
          Goodbye{1, 1, {}, 5, {1, 2}, 7},
          SessionFailed{1, 1, problem()},
          HasBegun{1, 1, 17},
          Enter{1, 1},
          HasCompleted{1, 1, 9},
          Return{1, 1, 99},
          FetchState{1, 2, 0, 100, 3, 99, true},
          StateParts{
              {{StateParts::Kind::kUpdate, 1, 10, 2, 5, 0.1, 1, -1, 2, {0, 0, 0, 1, 0, 0, 0, 2}}}, true, 77}};
}

HeadRecord head_record() {
  const MemberInfo member{1, "w1", "node1", "boot", {"10.0.0.1:7700", "unix:/run/x"}, 99, 1};
  MemberInfo other = member;
  other.worker_id = "w0";
  other.rank = other.number = 0;
  HeadRecord record;
  record.job = "job";
  record.address = "10.0.0.1:7700";
  record.num_workers = 2;
  record.joined = 5;
  record.job_nonce = "job nonce";
  record.token_digest.fill(7);
  record.view = 2;
  record.paused = true;
  record.last_closed = record.ended_well = true;
  record.workers = {{other, 1, 99, false, true, true, true, true, problem()},
                    {member, 1, 98, true, false, false, false, false, {}}};
  record.confirmed = 3;
  record.news = {{4, 1, problem(), 2, 7, {other, member}, 1}};
  return record;
}

BulkHeader header(uint64_t operation) {
  BulkHeader header;
  header.view = 1;
  header.operation = operation;
  header.source = 1;
  header.count = 1000;
  return header;
}

Bytes prefixed(uint8_t first, const Bytes& rest) {
  Bytes bytes{first};
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

Bytes payload(uint8_t first, const std::vector<std::byte>& rest) {
  const auto* begin = reinterpret_cast<const uint8_t*>(rest.data());
  return prefixed(first, Bytes(begin, begin + rest.size()));
}

std::vector<Bytes> head_seeds() {
  const std::vector<std::byte> file = write_head_record(head_record());
  return {payload(0, file), prefixed(1, encode(head_record()))};
}

std::vector<Bytes> codec_seeds() {
  std::vector<Bytes> seeds;
  for (const auto& message : messages()) {
    seeds.push_back(prefixed(0, encode(message)));
    seeds.push_back(prefixed(4, encode_reply(message)));
  }
  seeds.push_back(prefixed(4, encode_reply(problem())));
  seeds.push_back(
      prefixed(1, encode(Hello{1, Role::kPeer, "job", "w1", 1, 1, "1.0.0", false, "job nonce", {1, 2}})));
  seeds.push_back(prefixed(2, encode(header(5))));
  seeds.push_back(prefixed(19, encode(head_record())));
  seeds.push_back(prefixed(3, encode_status(problem())));
  seeds.push_back(prefixed(3, encode_status({})));
  seeds.push_back(prefixed(5, encode(Challenge{{}, {1, 2}})));
  seeds.push_back(prefixed(5, encode(Challenge{problem(), {}})));
  seeds.push_back(prefixed(6, encode(Proof{3, 4})));
  seeds.push_back(prefixed(7, encode(HelloReply{{}, {5, 6}, true})));
  seeds.push_back(prefixed(7, encode(HelloReply{problem(), {}})));
  seeds.push_back(
      payload(8, encode(StepHeader{1, 2, 3, 4, 5, 0.1, 1024, true, {1, 0.5}, {2, {{0, 1, 2, 3, 4}}}})));
  seeds.push_back(payload(9, encode(StartHeader{1, 1000, 2, 1})));
  seeds.push_back(payload(10, encode(WorkerGpus{{}, 22803, {{1}, {2}}})));
  seeds.push_back(payload(10, encode(WorkerGpus{problem(), 0, {{1}}})));
  seeds.push_back(payload(11, encode(TeamInvitation{{}, {1, 2, 3}})));
  seeds.push_back(payload(11, encode(TeamInvitation{problem(), {}})));
  seeds.push_back(payload(12, encode(ScheduleDigest{7, {}})));
  seeds.push_back(payload(12, encode(ScheduleDigest{0, problem()})));
  seeds.push_back(payload(13, encode(OperationCounts{4096, {5, 0, 7}})));
  seeds.push_back(payload(14, encode(ValueDigests{{1, 0, 3}})));
  seeds.push_back(payload(15, encode(GradientReport{5, 2, {{0, 4, 17}, {1, 1, 0}}})));
  seeds.push_back(payload(16, encode(ViewReport{true,
                                                7,
                                                1,
                                                2,
                                                1024,
                                                5,
                                                {1, 2, true, false, true, 3, 0.5, false, 4, 1, 0},
                                                {9, 1, 1, 1},
                                                true,
                                                77,
                                                900,
                                                {1},
                                                {5},
                                                0.1,
                                                2,
                                                Code::kNotFound,
                                                5,
                                                6})));
  const SampleLedger ledger{0, 100, 1, true, 2, 3, 0, 2, true, 40, 2, {{5, 0, 1, 2, 3, {{10, 3, 5}}}, {}}};
  seeds.push_back(
      payload(18, encode(SampleReport{false, {1, {{0, 2, 3, 0, 5}}}, {}, {}, {{5, {1, {}}}}, {ledger}})));
  seeds.push_back(payload(17, encode(CheckpointReport{{}, 7, 100, 9, {1, {{0, 1, 2, 3, 4}}}})));
  seeds.push_back(payload(17, encode(CheckpointReport{problem(), 7, 0, 0, {}})));
  return seeds;
}

// ---- RPC as a client writes it
constexpr uint8_t kPlain = 1, kSummed = 129;  // first bytes of streams

// `own_payload`: the last segment is a section of its own where there are checksums.
void append(Bytes& stream, capnp::MessageBuilder& message, bool own_payload = false) {
  auto flat = capnp::messageToFlatArray(message);
  auto bytes = flat.asBytes();
  if (stream[0] == kPlain) {
    stream.insert(stream.end(), bytes.begin(), bytes.end());
    return;
  }
  const auto segments = message.getSegmentsForOutput();
  const size_t table = (segments.size() + 2) / 2 * 8;
  const auto complement = static_cast<uint16_t>(~(segments.size() - 1));
  std::memcpy(bytes.begin() + 2, &complement, sizeof complement);
  const size_t payload = own_payload ? segments.back().asBytes().size() : 0;
  size_t at = 0;
  for (size_t n : {table, bytes.size() - table - payload, payload}) {  // as fuzz_stream reads sections
    if (n == 0) continue;
    stream.push_back(static_cast<uint8_t>(n)), stream.push_back(static_cast<uint8_t>(n >> 8));
    stream.insert(stream.end(), bytes.begin() + at, bytes.begin() + at + n);
    at += n;
  }
}

void bootstrap(Bytes& stream) {
  capnp::MallocMessageBuilder message;
  message.initRoot<capnp::rpc::Message>().initBootstrap().setQuestionId(0);
  append(stream, message);
}

capnp::rpc::Call::Builder begin_call(capnp::MallocMessageBuilder& message, uint32_t question,
                                     uint16_t method) {
  auto call = message.initRoot<capnp::rpc::Message>().initCall();
  call.setQuestionId(question);
  call.initTarget().initPromisedAnswer().setQuestionId(0);
  call.setInterfaceId(capnp::typeId<schema::Wire>());
  call.setMethodId(method);
  return call;
}

void call(Bytes& stream, uint32_t question, const Message& content) {
  capnp::MallocMessageBuilder message;
  auto params = begin_call(message, question, 0).initParams().getContent().initAs<schema::Wire::CallParams>();
  write(content, params.initMessage());
  append(stream, message);
}

// The payload in a segment of its own, as a span travels, or inside the message.
void push(Bytes& stream, uint32_t question, uint64_t operation, size_t nbytes, bool own_segment) {
  std::vector<capnp::word> payload((nbytes + 7) / 8);
  const capnp::Data::Reader data(reinterpret_cast<const kj::byte*>(payload.data()), nbytes);
  capnp::MallocMessageBuilder message(128 + (own_segment ? 0 : static_cast<unsigned>(payload.size())));
  auto params = begin_call(message, question, 1).initParams().getContent().initAs<schema::Wire::PushParams>();
  write(header(operation), params.initHeader());
  if (own_segment) {
    params.adoptData(message.getOrphanage().referenceExternalData(data));
  } else {
    params.setData(data);
  }
  append(stream, message, own_segment && nbytes > 0);
}

void finish(Bytes& stream, uint32_t question) {
  capnp::MallocMessageBuilder message;
  message.initRoot<capnp::rpc::Message>().initFinish().setQuestionId(question);
  append(stream, message);
}

std::vector<Bytes> stream_seeds() {
  std::vector<Bytes> seeds;
  Bytes handshake = encode(Hello());
  seeds.push_back(prefixed(0, handshake));
  const Bytes proof = encode(Proof{3, 4});  // the wrong one
  handshake.insert(handshake.end(), proof.begin(), proof.end());
  seeds.push_back(prefixed(0, handshake));
  for (uint8_t first : {kPlain, kSummed}) {
    for (const auto& message : messages()) {
      Bytes stream{first};
      bootstrap(stream);
      call(stream, 1, message);
      finish(stream, 1);
      seeds.push_back(stream);
    }
    for (bool own_segment : {true, false}) {
      for (size_t nbytes : {0, 8, 100, 4096, 20000}) {
        Bytes stream{first};
        bootstrap(stream);
        push(stream, 1, nbytes % 5, nbytes, own_segment);
        push(stream, 2, 1, nbytes, own_segment);
        finish(stream, 1);
        call(stream, 3, Renew{1, 1});
        seeds.push_back(stream);
      }
    }
  }
  return seeds;
}

// ---- checkpoints

Bytes text_seed(uint8_t first, const std::string& text) {
  return prefixed(first, Bytes(text.begin(), text.end()));
}

std::vector<Bytes> checkpoint_seeds() {
  using namespace checkpoint;
  Manifest manifest;
  manifest.library = "1.0.0";
  manifest.step = 12;
  manifest.view = manifest.workers = 1;
  manifest.strategy = "ps";
  manifest.optimizer = "sgd lr=0.1";
  manifest.parameters = {{"w", DType::kFloat32, {3}, true, 12}};
  manifest.shards = {{100, 1, 2, 3, true, {4}, {{{1, 2, 3}}}}};
  manifest.files = {{"shard-00000-of-00001.safetensors", 100, 7}};
  const std::string text = write_manifest(manifest);
  const std::vector<StoredTensor> header = {{"w", DType::kFloat32, {3}, 0, 12},
                                            {"w m [1:3]", DType::kFloat64, {2}, 12, 28},
                                            {"b", DType::kUint8, {36}, 28, 64}};
  const std::vector<StoredTensor> file = {{"w", DType::kFloat32, {3}, 0, 12},
                                          {"w m [0:1]", DType::kFloat32, {1}, 12, 16},
                                          {"w m [1:3]", DType::kFloat32, {2}, 16, 24}};
  return {text_seed(0, text.substr(0, text.rfind(",\"xxh3\""))),
          text_seed(1, write_header(header).substr(kHeaderLengthBytes)),
          text_seed(2, write_header(file) + std::string(24, 'x'))};
}

// ---- the configuration, and the answers of etcd

Bytes bytes_of(std::string_view text) { return Bytes(text.begin(), text.end()); }

std::vector<Bytes> config_seeds() {
  return {bytes_of("DSGD_HEAD=10.0.0.1:7700\nDSGD_NUM_WORKERS=4\nDSGD_RANK=3\n\nlease = 3s\nspin = 50us\n"),
          bytes_of("RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=a\nMASTER_PORT=29500\n\nbucket_size = 4M  # bytes\n"),
          bytes_of("OMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_RANK=0\nDSGD_HAED=a:1\n\nloss_scale = dynamic\n"
                   "wire = fp16\nnonfinite = skip\n"),
          bytes_of(
              "SLURM_STEP_NUM_TASKS=2\nSLURM_PROCID=1\nSLURM_STEP_ID=0\nSLURM_JOB_ID=7\n"
              "SLURM_STEP_NODELIST=n[1-3,7]\n\ndevices = cpu,cuda:0\ndevices_per_worker = 1\nports = 1-2\n")};
}

std::vector<Bytes> etcd_seeds() {
  const std::string none =
      R"(2{"header":{"revision":"5"},"succeeded":true,"responses":[{"response_range":{}},)"
      R"({"response_range":{}}]})"
      "\0"s;
  const std::string lease = R"(2{"header":{"revision":"5"},"ID":"7","TTL":"10"})"
                            "\0"s;
  const std::string leader =
      R"(2{"header":{"revision":"6"},"succeeded":true,"responses":[{"response_put":{}},)"
      R"({"response_range":{"kvs":[)"
      R"({"value":"YQ==","create_revision":"6","mod_revision":"6","lease":"7"}],"count":"1"}},)"
      R"({"response_range":{}}]})"
      "\0"s;
  const std::string renewed = R"(2{"result":{"ID":"7","TTL":"10"}})"
                              "\0"s;
  const std::string stored =
      R"(2{"header":{"revision":"7"},"succeeded":true,"responses":[{"response_put":{}}]})"
      "\0"s;
  const std::string refused = R"(1{"error":"etcdserver: no leader","code":14})"
                              "\0"s;
  return {bytes_of(none + lease + leader + stored + renewed + stored), bytes_of(refused + none + leader),
          bytes_of(leader + leader + refused + renewed)};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: seeds checkpoint|codec|config|etcd|head|stream DIRECTORY\n");
    return 2;
  }
  const std::string name = argv[1];
  const std::map<std::string, std::vector<Bytes> (*)()> corpora = {{"checkpoint", checkpoint_seeds},
                                                                   {"codec", codec_seeds},
                                                                   {"config", config_seeds},
                                                                   {"etcd", etcd_seeds},
                                                                   {"head", head_seeds},
                                                                   {"stream", stream_seeds}};
  if (corpora.count(name) == 0) {
    std::fprintf(stderr, "no corpus '%s': checkpoint, codec, config, etcd, head or stream\n", argv[1]);
    return 2;
  }
  std::filesystem::create_directories(argv[2]);
  int n = 0;
  for (const auto& seed : corpora.at(name)()) {
    std::ofstream file(std::filesystem::path(argv[2]) / ("seed-" + std::to_string(n++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write to %s\n", argv[2]);
      return 1;
    }
  }
  return 0;
}

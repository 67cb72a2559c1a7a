// Conversion between the structs of messages.h and their Cap'n Proto forms. Included inside transport only.
//
// read() accepts untrusted input: it checks every length, and turns each exception of the library into a
// Status. The bytes it allocates are bounded by the limits of codec.h and by the traversal limit of the
// message.
#pragma once

#include "transport/messages.h"
#include "transport/schema/codec.h"
#include "wire.capnp.h"  // generated

namespace dsgd::transport {

void write(const Status& from, schema::Status::Builder to);
void write(const Hello& from, schema::Hello::Builder to);
void write(const Challenge& from, schema::Challenge::Builder to);
void write(const Proof& from, schema::Proof::Builder to);
void write(const HelloReply& from, schema::HelloReply::Builder to);
void write(const Message& from, schema::Message::Builder to);
void write(const Result<Message>& from, schema::Reply::Builder to);
void write(const HeadRecord& from, schema::HeadRecord::Builder to);
void write(const BulkHeader& from, schema::BulkHeader::Builder to);

// Returns whether `from` was well formed. Outputs are written only if so.
Status read(schema::Status::Reader from, Status* to);
Status read(schema::Reply::Reader from, Result<Message>* to);
Result<Hello> read(schema::Hello::Reader from);
Result<Challenge> read(schema::Challenge::Reader from);
Result<Proof> read(schema::Proof::Reader from);
Result<HelloReply> read(schema::HelloReply::Reader from);
Result<Message> read(schema::Message::Reader from);
Result<HeadRecord> read(schema::HeadRecord::Reader from);
Result<BulkHeader> read(schema::BulkHeader::Reader from);

// Words that the encoded form needs at most, for MessageBuilder's first segment and RPC's MessageSize hints.
size_t words_for(const Message& message);
size_t words_for(const Status& status);

}  // namespace dsgd::transport

// Channels, and the numbers of calls and operations.
//
// A channel is a sequence of calls. Workers make the calls of one channel in the same order; those of
// different channels in any order. Steps, and calls that name no channel, use channel 0. Operations are
// numbered within their call, so a mismatch in one call does not shift the numbers of later calls, however
// many operations each worker's call has.
//
// The number of an operation, from the highest bit: 3 bits for the channel, 37 for the call in it (1, 2,
// ...), and 24 for the operation in the call. A call's number includes its channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dsgd {

// The host's channels are 0 .. DSGD_CHANNELS-1. Checkpoints have the last one, since they are written beside
// steps and the host's collectives.
inline constexpr uint32_t kChannels = 5, kCheckpointChannel = 4;
// Limits of tasks open at once on a worker: kOpenTasks buckets of a step, kOpenTasks collectives of channel
// 0, and kOpenTasksOfAChannel collectives of each other channel. The limits are separate, so that a channel
// with late peers does not block another.
inline constexpr size_t kOpenTasks = 4;
inline constexpr size_t kOpenTasksOfAChannel = 1;

inline constexpr uint64_t kOperationsOfACall = uint64_t{1} << 24, kCallsOfAChannel = uint64_t{1} << 37;
constexpr uint64_t call_number(uint32_t channel, uint64_t index) {
  return channel * kCallsOfAChannel + index;
}
constexpr uint64_t operation_number(uint64_t call, uint64_t index) {
  return call * kOperationsOfACall + index;
}
constexpr uint64_t call_of(uint64_t operation) { return operation / kOperationsOfACall; }
constexpr uint32_t channel_of(uint64_t call) { return static_cast<uint32_t>(call / kCallsOfAChannel); }
// The first operation of a call is compared between each pair of workers, whether they exchange data or not.
// It does not succeed anywhere unless all workers make the same call.
constexpr bool is_first_of_call(uint64_t operation) { return operation % kOperationsOfACall == 0; }
// "call 3 of the session", "call 3 of channel 1"
inline std::string call_name(uint64_t call) {
  const uint32_t channel = channel_of(call);
  return "call " + std::to_string(call % kCallsOfAChannel) +
         (channel == 0                    ? " of the session"
          : channel == kCheckpointChannel ? " for checkpoints"
                                          : " of channel " + std::to_string(channel));
}

// The highest kObjects operation numbers, which no call reaches, are those of objects: one for each put. The
// transport sends lower numbers first, so objects do not delay a step.
inline constexpr uint64_t kObjects = uint64_t{1} << 59;
constexpr uint64_t object_operation(uint64_t put) { return ~uint64_t{0} - kObjects + 1 + put; }
constexpr bool is_object(uint64_t operation) { return operation >= object_operation(0); }
constexpr uint64_t put_of_object(uint64_t operation) { return operation - object_operation(0); }

}  // namespace dsgd

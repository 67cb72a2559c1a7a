// Membership: the set of workers in the job. Pure state machines over transport's Loop and Network.
//
//   Head       rendezvous, ranks, leases, news; lives on one loop
//   Member     a worker's side: join, watch for news, leave; lives on the session's loop
//   Heartbeat  renews the worker's lease, from a network (loop, thread) of its own
//   probe      finds out whether a worker can be reached
//   Admission  checks each new connection's hello and sends it to the head or to the worker's peer handler
//
// README.md has the protocol and its state diagram.
#pragma once

#include "core/membership/admission.h"
#include "core/membership/head.h"
#include "core/membership/member.h"

package io.dsgd;

import java.nio.Buffer;

/**
 * The collectives of {@link Session}, each for a call that blocks and for one that returns an
 * operation.
 */
final class Collectives {
  private static final long WORLD = 0; // the group: all workers

  /** Options of an operation: user data, timeout_ms, channel. Null is the defaults. */
  static final long[] DEFAULTS = null;

  /** One checked call. The buffers are those that C sees. */
  record Call(InFlight.Start start, NativeArray... buffers) {}

  private Collectives() {}

  static void run(Session session, Call call) throws InterruptedException {
    session.inFlight().run(session, call.start, op -> null, call.buffers);
  }

  static Operation<Void> begin(Session session, Call call) {
    return session.inFlight().begin(session, call.start, op -> null, call.buffers);
  }

  static Call allReduce(long[] options, Buffer data, Reduction reduction) {
    return allReduce(
        options, Buffers.writable(data, Buffers.typeOf(data, "data"), "data"), reduction);
  }

  static Call allReduce(long[] options, NativeArray data, Reduction reduction) {
    DType type = Buffers.typeOf(data, "data");
    Buffers.writable(data, type, "data");
    int code = code(reduction);
    return new Call(
        (s, op) -> Raw.dsgd_allreduce(s, WORLD, data, data, type.code, code, options, op), data);
  }

  static Call broadcast(long[] options, Buffer data, int root) {
    return broadcast(options, Buffers.writable(data, Buffers.typeOf(data, "data"), "data"), root);
  }

  // The root's data is only read, but who is root is C's to say.
  static Call broadcast(long[] options, NativeArray data, int root) {
    DType type = Buffers.typeOf(data, "data");
    Buffers.writable(data, type, "data");
    return new Call(
        (s, op) -> Raw.dsgd_broadcast(s, WORLD, data, type.code, root, options, op), data);
  }

  static Call allGather(
      Session session, long[] options, Buffer send, Buffer receive, long... elementCounts) {
    DType type = Buffers.typeOf(send, "send");
    return allGather(
        session,
        options,
        Buffers.readable(send, type, "send"),
        Buffers.writable(receive, type, "receive"),
        elementCounts);
  }

  static Call allGather(
      Session session,
      long[] options,
      NativeArray send,
      NativeArray receive,
      long... elementCounts) {
    DType type = Buffers.typeOf(send, "send");
    Buffers.writable(receive, type, "receive");
    long[] parts = parts(session, elementCounts);
    return new Call(
        (s, op) -> Raw.dsgd_allgather(s, WORLD, send, receive, parts, type.code, options, op),
        send,
        receive);
  }

  static Call reduceScatter(
      Session session,
      long[] options,
      Buffer send,
      Buffer receive,
      Reduction reduction,
      long... elementCounts) {
    DType type = Buffers.typeOf(send, "send");
    return reduceScatter(
        session,
        options,
        Buffers.readable(send, type, "send"),
        Buffers.writable(receive, type, "receive"),
        reduction,
        elementCounts);
  }

  static Call reduceScatter(
      Session session,
      long[] options,
      NativeArray send,
      NativeArray receive,
      Reduction reduction,
      long... elementCounts) {
    DType type = Buffers.typeOf(send, "send");
    Buffers.writable(receive, type, "receive");
    long[] parts = parts(session, elementCounts);
    int code = code(reduction);
    return new Call(
        (s, op) ->
            Raw.dsgd_reduce_scatter(s, WORLD, send, receive, parts, type.code, code, options, op),
        send,
        receive);
  }

  static Call barrier(long[] options) {
    return new Call((s, op) -> Raw.dsgd_barrier(s, WORLD, options, op));
  }

  private static int code(Reduction reduction) {
    if (reduction == null) {
      throw DsgdException.invalid(
          "the reduction is null; pass one of Reduction, such as Reduction.SUM");
    }
    return reduction.code;
  }

  /** C reads one count per rank, so their number is checked here. */
  private static long[] parts(Session session, long... elementCounts) {
    if (elementCounts == null || elementCounts.length == 0) {
      return null;
    }
    if (elementCounts.length != session.size()) {
      throw DsgdException.invalid(
          "elementCounts has "
              + elementCounts.length
              + " numbers but there are "
              + session.size()
              + " workers; pass one for each");
    }
    for (int rank = 0; rank < elementCounts.length; rank++) {
      if (elementCounts[rank] < 0) {
        throw DsgdException.invalid(
            "elementCounts[" + rank + "] is " + elementCounts[rank] + "; pass 0 or more elements");
      }
    }
    return elementCounts.clone();
  }
}

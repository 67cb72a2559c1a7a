package io.dsgd;

import java.nio.Buffer;

/**
 * The collectives of a {@link Session} and of a {@link Channel}. Every worker calls those of one
 * session or channel in the same order. The class of a buffer says the element type; a {@link
 * NativeArray} holds memory of any size and type.
 */
public abstract sealed class Collectives permits Session, Channel {
  private static final long WORLD = 0; // the group: all workers

  /** One checked call. The buffers are those that C sees. */
  private record Call(InFlight.Start start, NativeArray... buffers) {}

  /** As InFlight.Start, with the element counts for C. */
  private interface CountedStart {
    void with(long session, long[] counts, long[] operation);
  }

  Collectives() {}

  abstract Session session();

  /** Of each operation: user data, timeout_ms, channel, stream. Null is the defaults. */
  abstract long[] options();

  /** In place: every worker ends with the reduction of all workers' data. */
  public void allReduce(Buffer data, Reduction reduction) throws InterruptedException {
    allReduce(inPlace(data), reduction);
  }

  /** As {@link #allReduce(Buffer, Reduction)}. */
  public void allReduce(NativeArray data, Reduction reduction) throws InterruptedException {
    run(checkedAllReduce(data, reduction));
  }

  /** As {@link #allReduce(Buffer, Reduction)}, in the background. */
  public Operation<Void> allReduceAsync(Buffer data, Reduction reduction) {
    return allReduceAsync(inPlace(data), reduction);
  }

  /** As {@link #allReduce(Buffer, Reduction)}, in the background. */
  public Operation<Void> allReduceAsync(NativeArray data, Reduction reduction) {
    return begin(checkedAllReduce(data, reduction));
  }

  /** In place: every worker ends with the data of rank {@code root}. */
  public void broadcast(Buffer data, int root) throws InterruptedException {
    broadcast(inPlace(data), root);
  }

  /** As {@link #broadcast(Buffer, int)}. */
  public void broadcast(NativeArray data, int root) throws InterruptedException {
    run(checkedBroadcast(data, root));
  }

  /** As {@link #broadcast(Buffer, int)}, in the background. */
  public Operation<Void> broadcastAsync(Buffer data, int root) {
    return broadcastAsync(inPlace(data), root);
  }

  /** As {@link #broadcast(Buffer, int)}, in the background. */
  public Operation<Void> broadcastAsync(NativeArray data, int root) {
    return begin(checkedBroadcast(data, root));
  }

  /**
   * {@code receive} gets every worker's {@code send}, in rank order.
   *
   * @param elementCounts elements of each rank; none when all send as many
   */
  public void allGather(Buffer send, Buffer receive, long... elementCounts)
      throws InterruptedException {
    allGather(sent(send), received(send, receive), elementCounts);
  }

  /** As {@link #allGather(Buffer, Buffer, long...)}. */
  public void allGather(NativeArray send, NativeArray receive, long... elementCounts)
      throws InterruptedException {
    run(checkedAllGather(send, receive, elementCounts));
  }

  /** As {@link #allGather(Buffer, Buffer, long...)}, in the background. */
  public Operation<Void> allGatherAsync(Buffer send, Buffer receive, long... elementCounts) {
    return allGatherAsync(sent(send), received(send, receive), elementCounts);
  }

  /** As {@link #allGather(Buffer, Buffer, long...)}, in the background. */
  public Operation<Void> allGatherAsync(
      NativeArray send, NativeArray receive, long... elementCounts) {
    return begin(checkedAllGather(send, receive, elementCounts));
  }

  /**
   * {@code send} is split in rank order; {@code receive} gets the reduction of this rank's part.
   *
   * @param elementCounts elements of each part; none when all are equal
   */
  public void reduceScatter(Buffer send, Buffer receive, Reduction reduction, long... elementCounts)
      throws InterruptedException {
    reduceScatter(sent(send), received(send, receive), reduction, elementCounts);
  }

  /** As {@link #reduceScatter(Buffer, Buffer, Reduction, long...)}. */
  public void reduceScatter(
      NativeArray send, NativeArray receive, Reduction reduction, long... elementCounts)
      throws InterruptedException {
    run(checkedReduceScatter(send, receive, reduction, elementCounts));
  }

  /** As {@link #reduceScatter(Buffer, Buffer, Reduction, long...)}, in the background. */
  public Operation<Void> reduceScatterAsync(
      Buffer send, Buffer receive, Reduction reduction, long... elementCounts) {
    return reduceScatterAsync(sent(send), received(send, receive), reduction, elementCounts);
  }

  /** As {@link #reduceScatter(Buffer, Buffer, Reduction, long...)}, in the background. */
  public Operation<Void> reduceScatterAsync(
      NativeArray send, NativeArray receive, Reduction reduction, long... elementCounts) {
    return begin(checkedReduceScatter(send, receive, reduction, elementCounts));
  }

  /** Ends when all workers have called it. */
  public void barrier() throws InterruptedException {
    run(checkedBarrier());
  }

  /** As {@link #barrier}, in the background. */
  public Operation<Void> barrierAsync() {
    return begin(checkedBarrier());
  }

  private void run(Call call) throws InterruptedException {
    session().inFlight().run(session(), call.start, op -> null, call.buffers);
  }

  private Operation<Void> begin(Call call) {
    return session().inFlight().begin(session(), call.start, op -> null, call.buffers);
  }

  private Call checkedAllReduce(NativeArray data, Reduction reduction) {
    long[] options = options();
    DType type = Buffers.typeOf(data, "data");
    Buffers.writable(data, type, "data");
    int code = code(reduction);
    return new Call(
        (s, op) -> Raw.dsgd_allreduce(s, WORLD, data, data, type.code, code, options, op), data);
  }

  // Writable is required on the root, too: only C checks `root`.
  private Call checkedBroadcast(NativeArray data, int root) {
    long[] options = options();
    DType type = Buffers.typeOf(data, "data");
    Buffers.writable(data, type, "data");
    return new Call(
        (s, op) -> Raw.dsgd_broadcast(s, WORLD, data, type.code, root, options, op), data);
  }

  private Call checkedAllGather(NativeArray send, NativeArray receive, long... elementCounts) {
    long[] options = options();
    DType type = Buffers.typeOf(send, "send");
    Buffers.writable(receive, type, "receive");
    return new Call(
        counted(
            elementCounts,
            (s, counts, op) ->
                Raw.dsgd_allgather(s, WORLD, send, receive, counts, type.code, options, op)),
        send,
        receive);
  }

  private Call checkedReduceScatter(
      NativeArray send, NativeArray receive, Reduction reduction, long... elementCounts) {
    long[] options = options();
    DType type = Buffers.typeOf(send, "send");
    Buffers.writable(receive, type, "receive");
    int code = code(reduction);
    return new Call(
        counted(
            elementCounts,
            (s, counts, op) ->
                Raw.dsgd_reduce_scatter(
                    s, WORLD, send, receive, counts, type.code, code, options, op)),
        send,
        receive);
  }

  private Call checkedBarrier() {
    long[] options = options();
    return new Call((s, op) -> Raw.dsgd_barrier(s, WORLD, options, op));
  }

  private static NativeArray inPlace(Buffer data) {
    return Buffers.writable(data, Buffers.typeOf(data, "data"), "data");
  }

  private static NativeArray sent(Buffer send) {
    return Buffers.readable(send, Buffers.typeOf(send, "send"), "send");
  }

  private static NativeArray received(Buffer send, Buffer receive) {
    return Buffers.writable(receive, Buffers.typeOf(send, "send"), "receive");
  }

  private static int code(Reduction reduction) {
    if (reduction == null) {
      throw DsgdException.invalid(
          "the reduction is null; pass one of Reduction, such as Reduction.SUM");
    }
    return reduction.code;
  }

  /**
   * The host may have made the counts for an earlier view. Then C must fail with VIEW_CHANGED, as on
   * the other workers. So a wrong number of counts is replaced by an empty array, which C refuses, but
   * only if the host knows the view.
   */
  private InFlight.Start counted(long[] elementCounts, CountedStart start) {
    if (elementCounts == null || elementCounts.length == 0) {
      return (s, op) -> start.with(s, null, op);
    }
    int given = elementCounts.length;
    int size = session().size();
    if (given != size) {
      return (s, op) -> {
        try {
          start.with(s, new long[0], op);
        } catch (DsgdException e) {
          if (e.status() != Status.INVALID_ARGUMENT) {
            throw e;
          }
          throw DsgdException.invalid(
              "elementCounts has %s numbers but there are %s workers; pass one for each"
                  .formatted(given, size));
        }
      };
    }
    for (int rank = 0; rank < elementCounts.length; rank++) {
      if (elementCounts[rank] < 0) {
        throw DsgdException.invalid(
            "elementCounts[" + rank + "] is " + elementCounts[rank] + "; pass 0 or more elements");
      }
    }
    long[] counts = elementCounts.clone();
    return (s, op) -> start.with(s, counts, op);
  }
}

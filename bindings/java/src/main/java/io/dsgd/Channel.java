package io.dsgd;

import java.nio.Buffer;
import java.time.Duration;

/**
 * Collectives in a sequence of their own. They need no common order with the steps of the session,
 * or with the collectives of other channels; all workers make those of one channel in the same
 * order. A thread that collects metrics beside the steps uses one.
 */
public final class Channel {
  private final Session session;
  private final int number;
  private final long[] options;

  Channel(Session session, int number, long timeoutMillis) {
    this.session = session;
    this.number = number;
    this.options = new long[] {0, timeoutMillis, number};
  }

  /**
   * The same channel with a deadline of its own for each collective, in place of {@code
   * step_timeout}.
   */
  public Channel withTimeout(Duration timeout) {
    return new Channel(session, number, Natives.millis(timeout));
  }

  /** In place: every worker ends with the reduction of all workers' data. */
  public void allReduce(Buffer data, Reduction reduction) throws InterruptedException {
    Collectives.run(session, Collectives.allReduce(options, data, reduction));
  }

  /** As {@link #allReduce} in the background. */
  public Operation<Void> allReduceAsync(Buffer data, Reduction reduction) {
    return Collectives.begin(session, Collectives.allReduce(options, data, reduction));
  }

  /** In place: every worker ends with the data of rank {@code root}. */
  public void broadcast(Buffer data, int root) throws InterruptedException {
    Collectives.run(session, Collectives.broadcast(options, data, root));
  }

  /** As {@link #broadcast} in the background. */
  public Operation<Void> broadcastAsync(Buffer data, int root) {
    return Collectives.begin(session, Collectives.broadcast(options, data, root));
  }

  /**
   * {@code receive} gets every worker's {@code send}, in rank order.
   *
   * @param elementCounts elements of each rank; none when all send as many
   */
  public void allGather(Buffer send, Buffer receive, long... elementCounts) throws InterruptedException {
    Collectives.run(session, Collectives.allGather(session, options, send, receive, elementCounts));
  }

  /** As {@link #allGather} in the background. */
  public Operation<Void> allGatherAsync(Buffer send, Buffer receive, long... elementCounts) {
    return Collectives.begin(session, Collectives.allGather(session, options, send, receive, elementCounts));
  }

  /**
   * {@code send} is split in rank order; {@code receive} gets the reduction of this rank's part.
   *
   * @param elementCounts elements of each part; none when all are equal
   */
  public void reduceScatter(Buffer send, Buffer receive, Reduction reduction, long... elementCounts)
      throws InterruptedException {
    Collectives.run(session, Collectives.reduceScatter(session, options, send, receive, reduction, elementCounts));
  }

  /** As {@link #reduceScatter} in the background. */
  public Operation<Void> reduceScatterAsync(
      Buffer send, Buffer receive, Reduction reduction, long... elementCounts) {
    return Collectives.begin(
        session, Collectives.reduceScatter(session, options, send, receive, reduction, elementCounts));
  }

  /** Ends when all workers have called it. */
  public void barrier() throws InterruptedException {
    Collectives.run(session, Collectives.barrier(options));
  }

  /** As {@link #barrier} in the background. */
  public Operation<Void> barrierAsync() {
    return Collectives.begin(session, Collectives.barrier(options));
  }

  // ---- The same for memory of any size and type
  // ------------------------------------------------------------------------

  /** As {@link #allReduce(Buffer, Reduction)}. */
  public void allReduce(NativeArray data, Reduction reduction) throws InterruptedException {
    Collectives.run(session, Collectives.allReduce(options, data, reduction));
  }

  /** As {@link #allReduceAsync(Buffer, Reduction)}. */
  public Operation<Void> allReduceAsync(NativeArray data, Reduction reduction) {
    return Collectives.begin(session, Collectives.allReduce(options, data, reduction));
  }

  /** As {@link #broadcast(Buffer, int)}. */
  public void broadcast(NativeArray data, int root) throws InterruptedException {
    Collectives.run(session, Collectives.broadcast(options, data, root));
  }

  /** As {@link #broadcastAsync(Buffer, int)}. */
  public Operation<Void> broadcastAsync(NativeArray data, int root) {
    return Collectives.begin(session, Collectives.broadcast(options, data, root));
  }

  /** As {@link #allGather(Buffer, Buffer, long...)}. */
  public void allGather(NativeArray send, NativeArray receive, long... elementCounts)
      throws InterruptedException {
    Collectives.run(session, Collectives.allGather(session, options, send, receive, elementCounts));
  }

  /** As {@link #allGatherAsync(Buffer, Buffer, long...)}. */
  public Operation<Void> allGatherAsync(
      NativeArray send, NativeArray receive, long... elementCounts) {
    return Collectives.begin(
        session, Collectives.allGather(session, options, send, receive, elementCounts));
  }

  /** As {@link #reduceScatter(Buffer, Buffer, Reduction, long...)}. */
  public void reduceScatter(
      NativeArray send, NativeArray receive, Reduction reduction, long... elementCounts)
      throws InterruptedException {
    Collectives.run(
        session,
        Collectives.reduceScatter(session, options, send, receive, reduction, elementCounts));
  }

  /** As {@link #reduceScatterAsync(Buffer, Buffer, Reduction, long...)}. */
  public Operation<Void> reduceScatterAsync(
      NativeArray send, NativeArray receive, Reduction reduction, long... elementCounts) {
    return Collectives.begin(
        session,
        Collectives.reduceScatter(session, options, send, receive, reduction, elementCounts));
  }
}

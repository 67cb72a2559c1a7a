package io.dsgd;

import java.time.Duration;

/**
 * Collectives in a sequence of their own. They need no common order with the steps of the session,
 * or with the collectives of other channels; all workers make those of one channel in the same
 * order. A thread that collects metrics beside the steps uses one.
 */
public final class Channel extends Collectives {
  private final Session session;
  private final int number;
  private final long timeoutMillis;
  private final long stream;
  private final long[] options;

  Channel(Session session, int number, long timeoutMillis, long stream) {
    this.session = session;
    this.number = number;
    this.timeoutMillis = timeoutMillis;
    this.stream = stream;
    this.options = new long[] {0, timeoutMillis, number, stream};
  }

  /**
   * The same channel with a deadline of its own for each collective, in place of {@code
   * step_timeout}.
   */
  public Channel withTimeout(Duration timeout) {
    return new Channel(session, number, Natives.millis(timeout), stream);
  }

  /**
   * The same channel for collectives on memory of a GPU, which is a {@link NativeArray} at a device
   * pointer ({@link NativeArray#at}). Each collective reads and writes it after the work that the
   * stream held at the call; when it has ended, the result is in memory, for work in every stream.
   *
   * @param stream numbered as in DLPack; 1 for the GPU's default stream, which also counts for
   *     memory of a GPU where no stream is given
   */
  public Channel withStream(long stream) {
    return new Channel(session, number, timeoutMillis, stream);
  }

  @Override
  Session session() {
    return session;
  }

  @Override
  long[] options() {
    return options;
  }
}

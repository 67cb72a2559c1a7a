package io.dsgd;

import java.time.Instant;

/** One line of a session's log. */
public final class LogRecord {
  private final LogLevel level;
  private final String message;
  private final Instant time;
  private final long session;
  private final int rank;

  LogRecord(LogLevel level, String message, Instant time, long session, int rank) {
    this.level = level;
    this.message = message;
    this.time = time;
    this.session = session;
    this.rank = rank;
  }

  /** How severe it is. */
  public LogLevel level() {
    return level;
  }

  /** The line. */
  public String message() {
    return message;
  }

  /** When it was made. */
  public Instant time() {
    return time;
  }

  /** Number of the session, unique in the process. */
  public long session() {
    return session;
  }

  /** Rank of the session; -1 as long as it is not known. */
  public int rank() {
    return rank;
  }

  @Override
  public String toString() {
    return level + ": " + message;
  }
}

package io.dsgd;

import java.io.Serializable;
import java.util.regex.Pattern;

/**
 * An error of dsgd. Its message says what failed, where, and what to do. {@link #status} gives the
 * kind of error; kinds that programs catch have a class of their own, too.
 */
public class DsgdException extends RuntimeException {
  private static final long serialVersionUID = 3;

  // A value in a message is quoted, and stays as it is.
  private static final Pattern C_NAME = Pattern.compile("(?<![\\w'/.-])(?:dsgd|DSGD)_\\w+");

  private record Failure(
      int code, int rank, String host, String operation, String parameter, String message)
      implements Serializable {}

  private final Failure failure;

  private DsgdException(Failure failure) {
    super(failure.message);
    this.failure = failure;
  }

  /** The kind of the error; {@link Status#UNKNOWN} for that of a newer library. */
  public Status status() {
    return Status.of(failure.code);
  }

  /** The number of the status in dsgd.h: negative, never reused. */
  public int code() {
    return failure.code;
  }

  /** Rank of the worker concerned; -1 if none. */
  public int rank() {
    return failure.rank;
  }

  /** Host concerned; empty if none. */
  public String host() {
    return failure.host;
  }

  /** Operation that failed, such as {@code step 17}; empty if none. */
  public String operation() {
    return failure.operation;
  }

  /** Parameter or configuration key concerned; empty if none. */
  public String parameter() {
    return failure.parameter;
  }

  /** A worker or the head died, stopped, left or cannot be reached. */
  public static final class WorkerLost extends DsgdException {
    private static final long serialVersionUID = 3;

    private WorkerLost(Failure failure) {
      super(failure);
    }
  }

  /** The deadline of the operation passed; the message names who is missing. */
  public static final class Timeout extends DsgdException {
    private static final long serialVersionUID = 3;

    private Timeout(Failure failure) {
      super(failure);
    }
  }

  /** Workers disagree: names, shapes, types, order of operations, settings. */
  public static final class Mismatch extends DsgdException {
    private static final long serialVersionUID = 3;

    private Mismatch(Failure failure) {
      super(failure);
    }
  }

  /** The same failure with the stack of the calling thread, for one that arose in another. */
  DsgdException rethrown() {
    DsgdException here = of(failure);
    here.initCause(this);
    return here;
  }

  static DsgdException of(Status status, String message) {
    return of(status.code, -1, "", "", "", message);
  }

  static DsgdException invalid(String message) {
    return of(Status.INVALID_ARGUMENT, message);
  }

  static DsgdException invalid(String parameter, String message) {
    return of(Status.INVALID_ARGUMENT.code, -1, "", "", parameter, message);
  }

  static DsgdException closed(String what) {
    return of(Status.CLOSED, what + " is closed");
  }

  /** For functions that return a negative code and nothing else. */
  static DsgdException ofCode(int code, String what) {
    return of(code, -1, "", "", "", what + " failed with status " + Status.of(code) + " (" + code + ")");
  }

  /** Called from the native code too. */
  static DsgdException of(
      int code, int rank, String host, String operation, String parameter, String message) {
    if (message.isEmpty()) {
      return ofCode(code, "the call");
    }
    return of(new Failure(code, rank, host, inJava(operation), parameter, inJava(message)));
  }

  private static DsgdException of(Failure failure) {
    return switch (Status.of(failure.code)) {
      case WORKER_LOST -> new WorkerLost(failure);
      case TIMEOUT -> new Timeout(failure);
      case MISMATCH -> new Mismatch(failure);
      default -> new DsgdException(failure);
    };
  }

  /** A text of the library with Java's names in the place of C's. */
  static String inJava(String text) {
    return C_NAME
        .matcher(text)
        .replaceAll(found -> CNames.IN_JAVA.getOrDefault(found.group(), found.group()));
  }
}

package io.dsgd;

import java.util.regex.Pattern;

/**
 * An error of dsgd. Its message says what failed, where, and what to do. {@link #status} gives the
 * kind of error; kinds that programs catch have a class of their own, too.
 */
public class DsgdException extends RuntimeException {
  private static final long serialVersionUID = 2;

  // A value in a message is quoted, and stays as it is.
  private static final Pattern C_NAME = Pattern.compile("(?<![\\w'/.-])(?:dsgd|DSGD)_\\w+");

  private final Status status;
  private final int code;
  private final int rank;
  private final String host;
  private final String operation;
  private final String parameter;

  private DsgdException(
      int code, int rank, String host, String operation, String parameter, String message) {
    super(message);
    this.status = Status.of(code);
    this.code = code;
    this.rank = rank;
    this.host = host;
    this.operation = operation;
    this.parameter = parameter;
  }

  /** The kind of the error; {@link Status#UNKNOWN} for that of a newer library. */
  public Status status() {
    return status;
  }

  /** The number of the status in dsgd.h: negative, never reused. */
  public int code() {
    return code;
  }

  /** Rank of the worker concerned; -1 if none. */
  public int rank() {
    return rank;
  }

  /** Host concerned; empty if none. */
  public String host() {
    return host;
  }

  /** Operation that failed, such as {@code step 17}; empty if none. */
  public String operation() {
    return operation;
  }

  /** Parameter or configuration key concerned; empty if none. */
  public String parameter() {
    return parameter;
  }

  /** A worker or the head died, stopped, left or cannot be reached. */
  public static final class WorkerLost extends DsgdException {
    private static final long serialVersionUID = 2;

    private WorkerLost(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The deadline of the operation passed; the message names who is missing. */
  public static final class Timeout extends DsgdException {
    private static final long serialVersionUID = 2;

    private Timeout(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** Workers disagree: names, shapes, types, order of operations, settings. */
  public static final class Mismatch extends DsgdException {
    private static final long serialVersionUID = 2;

    private Mismatch(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The same failure with the stack of the calling thread, for one that arose in another. */
  DsgdException rethrown() {
    DsgdException here = of(code, rank, host, operation, parameter, getMessage());
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
    String op = inJava(operation);
    String text = inJava(message);
    switch (Status.of(code)) {
      case WORKER_LOST:
        return new WorkerLost(code, rank, host, op, parameter, text);
      case TIMEOUT:
        return new Timeout(code, rank, host, op, parameter, text);
      case MISMATCH:
        return new Mismatch(code, rank, host, op, parameter, text);
      default:
        return new DsgdException(code, rank, host, op, parameter, text);
    }
  }

  /** A text of the library with Java's names in the place of C's. */
  static String inJava(String text) {
    return C_NAME
        .matcher(text)
        .replaceAll(found -> CNames.IN_JAVA.getOrDefault(found.group(), found.group()));
  }
}

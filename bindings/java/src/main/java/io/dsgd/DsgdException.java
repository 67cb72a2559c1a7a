package io.dsgd;

/**
 * What went wrong, where, and what to do: the code of the C library and what it knows about the
 * failure. The subclasses stand for the codes; a code of a newer library that has none is a plain
 * {@code DsgdException}.
 */
public class DsgdException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final int code;
  private final int rank;
  private final String host;
  private final String operation;
  private final String parameter;

  private DsgdException(
      int code, int rank, String host, String operation, String parameter, String message) {
    super(message);
    this.code = code;
    this.rank = rank;
    this.host = host;
    this.operation = operation;
    this.parameter = parameter;
  }

  /** The number of the code, as in dsgd.h: negative, never reused. */
  public int code() {
    return code;
  }

  /** The name of the code, such as {@code DSGD_ERR_TIMEOUT}. */
  public String codeName() {
    return Raw.dsgd_status_name(code);
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

  /** The same failure with the stack of the calling thread, for one that arose in another. */
  DsgdException rethrown() {
    DsgdException here = of(code, rank, host, operation, parameter, getMessage());
    here.initCause(this);
    return here;
  }

  static DsgdException invalid(String message) {
    return of(dsgd_status.DSGD_ERR_INVALID_ARGUMENT, -1, "", "", "", message);
  }

  static DsgdException invalid(String parameter, String message) {
    return of(dsgd_status.DSGD_ERR_INVALID_ARGUMENT, -1, "", "", parameter, message);
  }

  static DsgdException unsupported(String message) {
    return of(dsgd_status.DSGD_ERR_UNSUPPORTED, -1, "", "", "", message);
  }

  static DsgdException closed(String what) {
    return of(dsgd_status.DSGD_ERR_CLOSED, -1, "", "", "", what + " is closed");
  }

  /** For functions that return a negative code and nothing else. */
  static DsgdException ofCode(int code, String what) {
    return of(code, -1, "", "", "", what + ": " + Raw.dsgd_status_name(code));
  }

  /** Called from the native code too. */
  static DsgdException of(
      int code, int rank, String host, String operation, String parameter, String message) {
    switch (code) {
      case dsgd_status.DSGD_ERR_INVALID_ARGUMENT:
        return new InvalidArgument(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_STATE:
        return new State(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_CLOSED:
        return new Closed(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_FORKED:
        return new Forked(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_TIMEOUT:
        return new Timeout(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_WAIT_TIMEOUT:
        return new WaitTimeout(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_ABORTED:
        return new Aborted(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_WORKER_LOST:
        return new WorkerLost(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_MISMATCH:
        return new Mismatch(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_NOT_FOUND:
        return new NotFound(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_EXISTS:
        return new Exists(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_UNAUTHORIZED:
        return new Unauthorized(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_UNREACHABLE:
        return new Unreachable(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_ADDRESS_IN_USE:
        return new AddressInUse(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_NO_MEMORY:
        return new NoMemory(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_LIMIT:
        return new Limit(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_IO:
        return new Io(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_UNSUPPORTED:
        return new Unsupported(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_TORN:
        return new Torn(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_INTERNAL:
        return new Internal(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_DIVERGED:
        return new Diverged(code, rank, host, operation, parameter, message);
      case dsgd_status.DSGD_ERR_CORRUPTED:
        return new Corrupted(code, rank, host, operation, parameter, message);
      default:
        return new DsgdException(code, rank, host, operation, parameter, message);
    }
  }

  /** An argument, key, option, buffer or size is wrong. */
  public static final class InvalidArgument extends DsgdException {
    private static final long serialVersionUID = 1;

    private InvalidArgument(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The right call at the wrong moment: a step before start, a gradient marked twice. */
  public static final class State extends DsgdException {
    private static final long serialVersionUID = 1;

    private State(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The session, or another handle, was closed. */
  public static final class Closed extends DsgdException {
    private static final long serialVersionUID = 1;

    private Closed(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The process is a forked child of the one that made the handle. */
  public static final class Forked extends DsgdException {
    private static final long serialVersionUID = 1;

    private Forked(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The deadline of the operation passed; the message names who is missing. */
  public static final class Timeout extends DsgdException {
    private static final long serialVersionUID = 1;

    private Timeout(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** This wait ran out; what was waited for may still come. */
  public static final class WaitTimeout extends DsgdException {
    private static final long serialVersionUID = 1;

    private WaitTimeout(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The job was aborted here or on another worker; the message says who and why. */
  public static final class Aborted extends DsgdException {
    private static final long serialVersionUID = 1;

    private Aborted(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** A worker or the head died, stopped, left or cannot be reached. */
  public static final class WorkerLost extends DsgdException {
    private static final long serialVersionUID = 1;

    private WorkerLost(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** Workers disagree: names, shapes, types, order of operations, settings. */
  public static final class Mismatch extends DsgdException {
    private static final long serialVersionUID = 1;

    private Mismatch(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** There is no such name, file or object. */
  public static final class NotFound extends DsgdException {
    private static final long serialVersionUID = 1;

    private NotFound(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The name or the worker id is taken. */
  public static final class Exists extends DsgdException {
    private static final long serialVersionUID = 1;

    private Exists(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The token or the job name is wrong. */
  public static final class Unauthorized extends DsgdException {
    private static final long serialVersionUID = 1;

    private Unauthorized(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** An address cannot be resolved or connected to. */
  public static final class Unreachable extends DsgdException {
    private static final long serialVersionUID = 1;

    private Unreachable(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** The address to listen on is taken. */
  public static final class AddressInUse extends DsgdException {
    private static final long serialVersionUID = 1;

    private AddressInUse(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** Memory is exhausted. */
  public static final class NoMemory extends DsgdException {
    private static final long serialVersionUID = 1;

    private NoMemory(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** A limit of the system or of dsgd is reached. */
  public static final class Limit extends DsgdException {
    private static final long serialVersionUID = 1;

    private Limit(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** Reading or writing a file failed. */
  public static final class Io extends DsgdException {
    private static final long serialVersionUID = 1;

    private Io(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** Known, but not in this build or not for these arguments. */
  public static final class Unsupported extends DsgdException {
    private static final long serialVersionUID = 1;

    private Unsupported(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** An earlier step failed half-way; start a new session. */
  public static final class Torn extends DsgdException {
    private static final long serialVersionUID = 1;

    private Torn(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** A defect of dsgd; please report the message. */
  public static final class Internal extends DsgdException {
    private static final long serialVersionUID = 1;

    private Internal(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** Workers or replicas hold different models; load a checkpoint or start a new session. */
  public static final class Diverged extends DsgdException {
    private static final long serialVersionUID = 1;

    private Diverged(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }

  /** Received bytes failed their checksum. */
  public static final class Corrupted extends DsgdException {
    private static final long serialVersionUID = 1;

    private Corrupted(
        int code, int rank, String host, String operation, String parameter, String message) {
      super(code, rank, host, operation, parameter, message);
    }
  }
}

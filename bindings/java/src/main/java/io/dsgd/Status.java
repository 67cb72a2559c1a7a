// Made from dsgd.h by bindings/tables/generate; do not edit.
package io.dsgd;

/** The kind of an error. */
public enum Status {
  /** An argument, key, option or size is wrong. */
  INVALID_ARGUMENT(-1),
  /** Right call, wrong moment: step before start, gradient ready twice. */
  STATE(-2),
  /** The session was closed. */
  CLOSED(-3),
  /** Called in a forked child of the process that made the handle. */
  FORKED(-4),
  /** The operation's deadline passed; the message names who is missing. */
  TIMEOUT(-5),
  /** This wait ran out; the operation goes on and its buffers stay dsgd's. */
  WAIT_TIMEOUT(-6),
  /** A worker called Session.abort; the message says which and why. */
  ABORTED(-7),
  /** A worker or the head died, stopped, left or cannot be reached. */
  WORKER_LOST(-8),
  /** Workers disagree: names, shapes, dtypes, order of operations, settings. */
  MISMATCH(-9),
  /** No such name, file or object. */
  NOT_FOUND(-10),
  /** The name or the worker id is taken. */
  EXISTS(-11),
  /** Wrong token, job name or certificate, on either side. */
  UNAUTHORIZED(-12),
  /** An address cannot be resolved or connected to. */
  UNREACHABLE(-13),
  /** The address to listen on is taken. */
  ADDRESS_IN_USE(-14),
  NO_MEMORY(-15),
  /** A limit of the system or of dsgd is reached (file descriptors, sizes). */
  LIMIT(-16),
  /** Reading or writing a file failed. */
  IO(-17),
  /** Known, but not in this build or not for these arguments. */
  UNSUPPORTED(-18),
  /** An earlier step failed half-way; load a checkpoint or start a new session. */
  TORN(-19),
  /** A defect of dsgd; please report the message. */
  INTERNAL(-20),
  /** Workers or replicas hold different models; load a checkpoint or start anew. */
  DIVERGED(-21),
  /** Received bytes failed their checksum; have the network checked. */
  CORRUPTED(-22),
  /** A worker was lost or has joined; the job goes on without this call. */
  VIEW_CHANGED(-23),
  /** Gradients of the step have NaN or infinity, with `nonfinite` = fail. */
  NON_FINITE(-24),
  /** The other workers go on without this one; it can only join another job. */
  EVICTED(-25),
  /** A code of a newer library; {@link DsgdException#code} is its number. */
  UNKNOWN(1);

  final int code;

  Status(int code) {
    this.code = code;
  }

  static Status of(int code) {
    for (Status known : values()) {
      if (known.code == code) {
        return known;
      }
    }
    return UNKNOWN;
  }
}

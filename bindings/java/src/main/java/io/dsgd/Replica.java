package io.dsgd;

import java.nio.Buffer;
import java.util.Collection;
import java.util.function.BiFunction;

/** One copy of the model on one device of this worker. Belongs to its session. */
public final class Replica {
  private final Session session;
  private final long pointer;

  Replica(Session session, long pointer) {
    this.session = session;
    this.pointer = pointer;
  }

  /** Where its buffers are: "cpu", "cuda:0". */
  public String device() {
    return session.inTurnGet(s -> Raw.dsgd_replica_device(pointer));
  }

  @Override
  public String toString() {
    try {
      return "Replica[" + device() + "]";
    } catch (DsgdException e) {
      return "Replica[" + e.status() + "]";
    }
  }

  // Java buffers cannot refer to GPU memory.
  private void requireHost() {
    String device = Raw.dsgd_replica_device(pointer);
    if (!device.equals("cpu")) {
      throw DsgdException.of(
          Status.UNSUPPORTED,
          "buffers of a replica on %s cannot be Java buffers; bind DLPack tensors of that device with bindDlpack"
              .formatted(device));
    }
  }

  /**
   * Buffers from dsgd for one parameter, zeroed: the fastest, since dsgd may place them where peers
   * reach them. Calling again gives the same memory.
   */
  public Memory alloc(Parameter parameter) {
    return session.inTurnGet(
        s -> {
          long p = Parameter.pointer(parameter, session);
          requireHost();
          Raw.dsgd_alloc(pointer, p);
          session.inFlight().keepBound(pointer, p); // nothing of the host's any more
          return Memory.of(pointer, parameter, p);
        });
  }

  /**
   * Gives dsgd the host's own direct buffers of one parameter, in native byte order: exactly its
   * bytes, from position to limit. dsgd writes the value in start and steps, reads the gradient in
   * steps and the value once more when the session is closed, and keeps both reachable until then or
   * until others are bound. May be called again between steps.
   *
   * @param gradient null for an untrained parameter
   */
  public void bind(Parameter parameter, Buffer value, Buffer gradient) {
    bind(
        parameter,
        (type, name) -> Buffers.writable(value, type, name),
        gradient == null ? null : (type, name) -> Buffers.writable(gradient, type, name));
  }

  /**
   * As {@link #bind(Parameter, Buffer, Buffer)}, with memory of any size.
   *
   * @param gradient null for an untrained parameter
   */
  public void bind(Parameter parameter, NativeArray value, NativeArray gradient) {
    bind(
        parameter,
        (type, name) -> Buffers.writable(value, type, name),
        gradient == null ? null : (type, name) -> Buffers.writable(gradient, type, name));
  }

  private void bind(
      Parameter parameter,
      BiFunction<DType, String, NativeArray> value,
      BiFunction<DType, String, NativeArray> gradient) {
    session.inTurn(
        s -> {
          long p = Parameter.pointer(parameter, session);
          requireHost();
          String of = " of parameter '" + parameter.name() + "'";
          NativeArray v = value.apply(parameter.type(), "value" + of);
          NativeArray g =
              gradient == null ? null : gradient.apply(parameter.type(), "gradient" + of);
          if (g == null && parameter.isTrained() && v.nbytes > 0) {
            throw DsgdException.invalid(
                parameter.name(),
                ("parameter '%s' is trained and needs a gradient buffer; give one, or add the parameter with"
                        + " addUntrained")
                    .formatted(parameter.name()));
          }
          Raw.dsgd_bind(pointer, p, v, g);
          session.inFlight().keepBound(pointer, p, v, g);
        });
  }

  /** As {@link #bind(Parameter, NativeArray, NativeArray)}, for an untrained parameter. */
  public void bind(Parameter parameter, NativeArray value) {
    bind(parameter, value, (NativeArray) null);
  }

  /** As {@link #bind(Parameter, Buffer, Buffer)}, for an untrained parameter. */
  public void bind(Parameter parameter, Buffer value) {
    bind(parameter, value, (Buffer) null);
  }

  /**
   * As {@link #bind(Parameter, Buffer, Buffer)}, with DLPack tensors. On success they are dsgd's,
   * which calls their deleters when they are bound no more; on failure they stay the caller's.
   *
   * @param gradient null for an untrained parameter
   */
  public void bindDlpack(Parameter parameter, DlpackTensor value, DlpackTensor gradient) {
    session.inTurn(
        s -> {
          long p = Parameter.pointer(parameter, session);
          DlpackTensor.handOver(value, gradient, (v, g) -> Raw.dsgd_bind_dlpack(pointer, p, v, g));
          session.inFlight().keepBound(pointer, p); // nothing of the host's any more
        });
  }

  /**
   * A DLPack tensor over the values that {@link #alloc} gave; it keeps them mapped until closed.
   */
  public DlpackTensor exportValue(Parameter parameter) {
    return export(parameter, null);
  }

  /**
   * A DLPack tensor over the gradients that {@link #alloc} gave; it keeps them mapped until closed.
   * Null for an untrained parameter.
   */
  public DlpackTensor exportGradient(Parameter parameter) {
    if (parameter != null && !parameter.isTrained()) {
      return null;
    }
    long[] gradient = new long[1];
    export(parameter, gradient).close();
    return new DlpackTensor(gradient[0]);
  }

  private DlpackTensor export(Parameter parameter, long[] gradient) {
    return session.inTurnGet(
        s -> {
          long[] value = new long[1];
          Raw.dsgd_export_dlpack(pointer, Parameter.pointer(parameter, session), value, gradient);
          return new DlpackTensor(value[0]);
        });
  }

  /**
   * Contribution weight of this replica from the next step on, instead of an equal part of the
   * step's weight; a negative number goes back to that. Once one replica has a weight of its own
   * all replicas of the worker must have.
   */
  public void setWeight(double weight) {
    session.inTurn(s -> Raw.dsgd_replica_weight(pointer, weight));
  }

  /**
   * This gradient is complete and will not change until the step ends. Any thread, any order; never
   * blocks.
   */
  public void ready(Parameter parameter) {
    ready(parameter, 0);
  }

  /**
   * As {@link #ready(Parameter)} for a gradient on a GPU, complete once the work that the stream holds
   * now is done. Gradients travel in buckets. The step may therefore also wait for work that is
   * enqueued in the stream before the last gradient of the same bucket is marked. Do not destroy the
   * stream before the step has ended: new values are ordered on it, too.
   *
   * @param stream numbered as in DLPack; 0 for host memory, or a GPU's default stream
   */
  public void ready(Parameter parameter, long stream) {
    session.use(
        s -> Raw.dsgd_gradient_ready(pointer, Parameter.pointer(parameter, session), stream));
  }

  /**
   * As {@link #ready(Parameter)} for several parameters, in one call. If one gradient cannot be
   * marked, none is.
   */
  public void ready(Collection<Parameter> parameters) {
    ready(parameters, 0);
  }

  /** As {@link #ready(Collection)} for gradients on a GPU that are all complete in one stream. */
  public void ready(Collection<Parameter> parameters, long stream) {
    long[] pointers = parameters.stream().mapToLong(p -> Parameter.pointer(p, session)).toArray();
    session.use(s -> Raw.dsgd_gradients_ready(pointer, pointers, stream));
  }

  /**
   * Makes this stream wait for the new values of all steps that have ended. Work that the host
   * enqueues afterwards sees them, as in the default stream. Call it for streams on which no gradient
   * was marked. Any thread; never blocks.
   *
   * @param stream numbered as in DLPack; 0 for host memory, or a GPU's default stream
   */
  public void streamWait(long stream) {
    session.use(s -> Raw.dsgd_stream_wait(pointer, stream));
  }

  /**
   * This replica has no gradient of this parameter in the step begun, or, with none begun, in the
   * next one. Any thread; never blocks.
   */
  public void absent(Parameter parameter) {
    session.use(s -> Raw.dsgd_gradient_absent(pointer, Parameter.pointer(parameter, session)));
  }
}

package io.dsgd;

/** A named tensor that is trained, or state that travels with the model. Belongs to its session. */
public final class Parameter {
  private final Session session;
  private final long pointer;
  private final String name;
  private final DType type;
  private final long[] shape;
  private final boolean trained;

  Parameter(Session session, long pointer, String name, DType type, long[] shape, boolean trained) {
    this.session = session;
    this.pointer = pointer;
    this.name = name;
    this.type = type;
    this.shape = shape.clone();
    this.trained = trained;
  }

  public String name() {
    return name;
  }

  public DType type() {
    return type;
  }

  /** Dimensions, the outermost first. */
  public long[] shape() {
    return shape.clone();
  }

  /** Whether it has a gradient. */
  public boolean isTrained() {
    return trained;
  }

  /** Number of elements: the product of the dimensions, 1 for a scalar. */
  public long elements() {
    long product = 1;
    for (long dimension : shape) {
      product *= dimension;
    }
    return product;
  }

  /**
   * Settings, "key=value" words: {@code rate} multiplies the learning rate, {@code decay} replaces
   * the weight decay, {@code frozen=1} leaves it out of steps. For an untrained parameter, {@code
   * sync=mean} sets all replicas to the mean of their values in every {@code sync_period}-th step,
   * {@code sync=first} to the values of the first replica. Equal on all workers; before start, or between
   * steps by all of them.
   */
  public void set(String options) {
    session.inTurn(s -> Raw.dsgd_parameter_set(pointer, options));
  }

  /** The pointer for a call on {@code caller}'s session, whose handle the caller holds. */
  static long pointer(Parameter parameter, Session caller) {
    if (parameter == null) {
      throw DsgdException.invalid(
          "the parameter is null; pass one that Session.addParameter has returned");
    }
    if (parameter.session != caller) {
      throw DsgdException.invalid(
          parameter.name,
          "parameter '" + parameter.name + "' belongs to another session; add it to this one");
    }
    return parameter.pointer;
  }

  @Override
  public String toString() {
    return "Parameter(" + name + ", " + type + ", " + java.util.Arrays.toString(shape) + ")";
  }
}

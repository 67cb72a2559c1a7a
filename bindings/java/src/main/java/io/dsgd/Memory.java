package io.dsgd;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * The buffers of one parameter in one replica that dsgd allocated. They stay mapped as long as any
 * of them or of their views ({@code asFloatBuffer()}, slices) is reachable, even beyond the
 * session.
 */
public final class Memory {
  private final ByteBuffer value;
  private final ByteBuffer gradient;

  Memory(ByteBuffer value, ByteBuffer gradient) {
    this.value = value;
    this.gradient = gradient;
  }

  /** The values, in native byte order; a new view at each call. */
  public ByteBuffer value() {
    return view(value);
  }

  /** The gradients, in native byte order; null for an untrained parameter. */
  public ByteBuffer gradient() {
    return gradient == null ? null : view(gradient);
  }

  private static ByteBuffer view(ByteBuffer buffer) {
    return buffer.duplicate().order(ByteOrder.nativeOrder());
  }

  static Memory of(long replica, Parameter parameter, long parameterPointer) {
    ByteBuffer value = buffer(replica, parameter, parameterPointer, false);
    return new Memory(
        value, parameter.isTrained() ? buffer(replica, parameter, parameterPointer, true) : null);
  }

  /**
   * Each buffer has a reference to the memory of its own, given back when the last view of it is
   * gone.
   */
  private static ByteBuffer buffer(
      long replica, Parameter parameter, long parameterPointer, boolean gradient) {
    long[] memory = new long[1];
    Raw.dsgd_memory_get(replica, parameterPointer, memory);
    long reference = memory[0];
    long address =
        gradient ? Raw.dsgd_memory_gradient(reference) : Raw.dsgd_memory_value(reference);
    String name = "parameter '" + parameter.name() + "'";
    return Natives.buffer(
        address, Raw.dsgd_memory_nbytes(reference), name, () -> Raw.dsgd_memory_free(reference));
  }
}

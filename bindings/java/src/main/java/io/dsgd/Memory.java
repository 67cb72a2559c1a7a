package io.dsgd;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * The memory of one parameter in one replica that dsgd allocated. It stays mapped as long as any
 * array, buffer or view of it ({@code asFloatBuffer()}, slices) is reachable, even beyond the
 * session.
 */
public final class Memory {
  private final NativeArray value;
  private final NativeArray gradient;
  // Created on first use and kept: each buffer costs a record in the cleaner.
  private ByteBuffer valueBuffer;
  private ByteBuffer gradientBuffer;

  private Memory(NativeArray value, NativeArray gradient) {
    this.value = value;
    this.gradient = gradient;
  }

  /**
   * The values, in native byte order; a new view at each call. A parameter of more than 2147483647
   * bytes has only {@link #valueArray}.
   */
  public synchronized ByteBuffer value() {
    if (valueBuffer == null) {
      valueBuffer = value.buffer();
    }
    return view(valueBuffer);
  }

  /** The gradients, as {@link #value}; null for an untrained parameter. */
  public synchronized ByteBuffer gradient() {
    if (gradientBuffer == null && gradient != null) {
      gradientBuffer = gradient.buffer();
    }
    return gradient == null ? null : view(gradientBuffer);
  }

  private static ByteBuffer view(ByteBuffer buffer) {
    return buffer.duplicate().order(ByteOrder.nativeOrder());
  }

  /** The values, of any size. */
  public NativeArray valueArray() {
    return value;
  }

  /** The gradients, of any size; null for an untrained parameter. */
  public NativeArray gradientArray() {
    return gradient;
  }

  static Memory of(long replica, Parameter parameter, long parameterPointer) {
    NativeArray value = array(replica, parameter, parameterPointer, false);
    return new Memory(
        value, parameter.isTrained() ? array(replica, parameter, parameterPointer, true) : null);
  }

  /** Each array has a reference to the memory of its own. */
  private static NativeArray array(
      long replica, Parameter parameter, long parameterPointer, boolean gradient) {
    long[] memory = new long[1];
    Raw.dsgd_memory_get(replica, parameterPointer, memory);
    long reference = memory[0];
    long address =
        gradient ? Raw.dsgd_memory_gradient(reference) : Raw.dsgd_memory_value(reference);
    return NativeArray.ofC(
        address,
        Raw.dsgd_memory_nbytes(reference),
        parameter.type(),
        true,
        () -> Raw.dsgd_memory_free(reference));
  }
}

package io.dsgd;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/** Element types. */
public enum DType {
  FLOAT32(dsgd_dtype.DSGD_FLOAT32, FloatBuffer.class),
  FLOAT64(dsgd_dtype.DSGD_FLOAT64, DoubleBuffer.class),
  INT32(dsgd_dtype.DSGD_INT32, IntBuffer.class),
  INT64(dsgd_dtype.DSGD_INT64, LongBuffer.class),
  UINT8(dsgd_dtype.DSGD_UINT8, ByteBuffer.class),
  /** IEEE 754 binary16; a ShortBuffer has its bits. */
  FLOAT16(dsgd_dtype.DSGD_FLOAT16, ShortBuffer.class),
  /** The upper half of a float; a ByteBuffer has its bits. */
  BFLOAT16(dsgd_dtype.DSGD_BFLOAT16, null);

  final int code;
  private final Class<? extends Buffer> buffer;

  DType(int code, Class<? extends Buffer> buffer) {
    this.code = code;
    this.buffer = buffer;
  }

  /** Bytes of one element. */
  public int size() {
    return (int) Raw.dsgd_dtype_size(code);
  }

  /** The type that a buffer's elements have by its class; {@code UINT8} for a ByteBuffer. */
  static DType of(Buffer buffer, String name) {
    for (DType type : values()) {
      if (type.buffer != null && type.buffer.isInstance(buffer)) {
        return type;
      }
    }
    throw DsgdException.invalid(
        name
            + (buffer == null
                ? " is null; pass a direct buffer"
                : " is a "
                    + buffer.getClass().getSimpleName()
                    + "; dsgd takes a direct FloatBuffer, DoubleBuffer, IntBuffer, LongBuffer,"
                    + " ShortBuffer or ByteBuffer"));
  }
}

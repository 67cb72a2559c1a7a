package io.dsgd;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * Named bytes, or a named array, that one worker put. Its memory is freed when it and all views of
 * its data are unreachable.
 */
public final class SharedObject {
  private final String name;
  private final NativeArray data;
  private final DType dtype;
  private final long[] shape;

  SharedObject(String name, long pointer) {
    this.name = name;
    int code = Raw.dsgd_object_dtype(pointer);
    this.dtype =
        Arrays.stream(DType.values()).filter(type -> type.code == code).findFirst().orElse(null);
    this.shape = new long[(int) Raw.dsgd_object_ndim(pointer)];
    if (shape.length > 0) {
      ((ByteBuffer) Raw.buffer_over(Raw.dsgd_object_shape(pointer), 8L * shape.length))
          .order(ByteOrder.nativeOrder())
          .asLongBuffer()
          .get(shape);
    }
    this.data =
        NativeArray.ofC(
            Raw.dsgd_object_data(pointer),
            Raw.dsgd_object_nbytes(pointer),
            dtype == null ? DType.UINT8 : dtype,
            false,
            () -> Raw.dsgd_object_free(pointer));
  }

  public String name() {
    return name;
  }

  /** The type of the elements; null if the object is bytes without a type. */
  public DType dtype() {
    return dtype;
  }

  /** The shape of the array, outermost dimension first; empty for a scalar and for bytes. */
  public long[] shape() {
    return shape.clone();
  }

  /**
   * The bytes, not copied; a new read-only view in native byte order at each call. The elements of an
   * array are in row-major order: {@code data().asFloatBuffer()}, for example.
   */
  public ByteBuffer data() {
    return data.buffer();
  }

  /** The elements, or the bytes of an object without a type; not copied, read-only. */
  public NativeArray array() {
    return data;
  }

  /** A copy of the bytes. */
  public byte[] toByteArray() {
    ByteBuffer buffer = data();
    byte[] bytes = new byte[buffer.remaining()];
    buffer.get(bytes);
    return bytes;
  }
}

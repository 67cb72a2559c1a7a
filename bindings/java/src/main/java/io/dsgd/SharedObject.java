package io.dsgd;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A named blob that one worker gave to all. Its memory is freed when it and all views of its data
 * are unreachable.
 */
public final class SharedObject {
  private final String name;
  private final ByteBuffer data;

  SharedObject(String name, long pointer) {
    this.name = name;
    this.data =
        Natives.buffer(
                Raw.dsgd_object_data(pointer),
                Raw.dsgd_object_nbytes(pointer),
                "object '" + name + "'",
                () -> Raw.dsgd_object_free(pointer))
            .asReadOnlyBuffer();
  }

  public String name() {
    return name;
  }

  /** The bytes, not copied; a new read-only view in native byte order at each call. */
  public ByteBuffer data() {
    return data.duplicate().order(ByteOrder.nativeOrder());
  }

  /** A copy of the bytes. */
  public byte[] toByteArray() {
    byte[] bytes = new byte[data.capacity()];
    data.duplicate().get(bytes);
    return bytes;
  }
}

package io.dsgd;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A pointer to a DLPack 1.x {@code DLManagedTensorVersioned}, for exchange with native libraries of
 * the same process. Its holder calls the deleter: {@link #close}, or the collector.
 */
public final class DlpackTensor implements AutoCloseable {
  private final AtomicLong owned;
  private final Cleaner.Cleanable cleanable;

  /**
   * Takes over a tensor.
   *
   * @param address of a struct DLManagedTensorVersioned that nobody else will delete
   */
  public DlpackTensor(long address) {
    if (address == 0) {
      throw DsgdException.invalid(
          "the address of the DLPack tensor is 0; pass that of a DLManagedTensorVersioned");
    }
    AtomicLong own = new AtomicLong(address); // the cleaner must not refer to this
    owned = own;
    cleanable = Natives.CLEANER.register(this, () -> Raw.dlpack_delete(own.getAndSet(0)));
  }

  /** The address of the struct; 0 after close or once it was bound. */
  public synchronized long address() {
    return owned.get();
  }

  /** The address of the first element; 0 after close or once it was bound. */
  public synchronized long data() {
    return Raw.dlpack_data(owned.get());
  }

  /** The struct becomes the caller's, who calls its deleter. */
  public synchronized long release() {
    return owned.getAndSet(0);
  }

  /** Calls the deleter, unless the tensor was released or bound. Closing twice is fine. */
  @Override
  public synchronized void close() {
    cleanable.clean();
  }

  interface Bind {
    void with(long value, long gradient);
  }

  /** Both go over to C if {@code bind} succeeds. */
  static void handOver(DlpackTensor value, DlpackTensor gradient, Bind bind) {
    if (value != null && value == gradient) {
      throw DsgdException.invalid("value and gradient are the same DLPack tensor; pass two");
    }
    Object first = value == null ? new Object() : value;
    Object second = gradient == null ? new Object() : gradient;
    synchronized (first) {
      synchronized (second) {
        bind.with(address(value, "value"), address(gradient, "gradient"));
        if (value != null) {
          value.release();
        }
        if (gradient != null) {
          gradient.release();
        }
      }
    }
  }

  private static long address(DlpackTensor tensor, String name) {
    if (tensor != null && tensor.owned.get() == 0) {
      throw DsgdException.closed("the DLPack tensor of the " + name);
    }
    return tensor == null ? 0 : tensor.owned.get();
  }
}

package io.dsgd;

import java.util.Arrays;

/**
 * The data shard of this worker: which sample indices it reads in an epoch. Over all workers every
 * index comes exactly once per epoch, also if workers are lost and the job goes on: then ask for
 * more even if there was none. It needs no close, but has one.
 */
public final class Shard implements AutoCloseable {
  private final Handle handle;
  private final long[] count = new long[1];

  Shard(long pointer) {
    handle = new Handle(pointer, "the shard", Raw::dsgd_shard_free);
    Natives.CLEANER.register(this, handle::close);
  }

  /** Goes to the beginning of an epoch, 0, 1, 2, …; a new shard stands at epoch 0. */
  public synchronized void epoch(long epoch) {
    if (epoch < 0) {
      throw DsgdException.invalid("epoch is " + epoch + "; epochs are numbered from 0");
    }
    handle.use(s -> Raw.dsgd_shard_epoch(s, epoch));
  }

  /**
   * Goes to a position in an epoch's order of all samples: the workers together have read the first
   * {@code position} indices, and the rest is split among them anew. A job can thus resume in
   * mid-epoch with another number of workers.
   */
  public synchronized void seek(long epoch, long position) {
    if (epoch < 0 || position < 0) {
      throw DsgdException.invalid(
          "epoch " + epoch + " and position " + position + " are numbered from 0");
    }
    handle.use(s -> Raw.dsgd_shard_seek(s, epoch, position));
  }

  /** The epoch that the shard is in: the last one set, or that of the checkpoint that was loaded. */
  public synchronized long epoch() {
    return handle.get(Raw::dsgd_shard_current_epoch);
  }

  /**
   * The position of all workers together, for {@link #seek}, provided that each has drawn as many
   * indices as this one.
   */
  public synchronized long position() {
    return handle.get(Raw::dsgd_shard_position);
  }

  /** Fills {@code indices} from its beginning; returns how many, 0 when the epoch is over. */
  public synchronized int next(long[] indices) {
    if (indices == null) {
      throw DsgdException.invalid("indices is null; pass an array to fill");
    }
    handle.use(s -> Raw.dsgd_shard_next(s, indices, count));
    return (int) count[0];
  }

  /** Up to {@code max} next indices; empty when the epoch is over. */
  public long[] next(int max) {
    if (max < 1) {
      throw DsgdException.invalid("max is " + max + "; ask for 1 or more indices");
    }
    long[] indices = new long[max];
    return Arrays.copyOf(indices, next(indices));
  }

  /** Indices per epoch on this worker. */
  public synchronized long size() {
    return handle.get(Raw::dsgd_shard_size);
  }

  @Override
  public void close() {
    handle.close();
  }
}

package io.dsgd;

/** Membership and progress of a session at one moment. */
public final class SessionInfo {
  private final long id;
  private final long view;
  private final long steps;
  private final SessionState state;
  private final int rank;
  private final int size;
  private final int localRank;
  private final int localSize;
  private final int replicas;

  /** Called from the native code. */
  SessionInfo(
      long id,
      long view,
      long steps,
      int state,
      int rank,
      int size,
      int localRank,
      int localSize,
      int replicas) {
    this.id = id;
    this.view = view;
    this.steps = steps;
    this.state = SessionState.of(state);
    this.rank = rank;
    this.size = size;
    this.localRank = localRank;
    this.localSize = localSize;
    this.replicas = replicas;
  }

  /** Number of the session, unique in the process. */
  public long id() {
    return id;
  }

  /** Number of the view. */
  public long view() {
    return view;
  }

  /** Number of steps that have succeeded, which is the index of the next one. */
  public long steps() {
    return steps;
  }

  /** Whether the session can make steps. */
  public SessionState state() {
    return state;
  }

  /** 0 .. size - 1. */
  public int rank() {
    return rank;
  }

  /** Number of workers. */
  public int size() {
    return size;
  }

  /** Rank among the workers on this node. */
  public int localRank() {
    return localRank;
  }

  /** Number of workers on this node. */
  public int localSize() {
    return localSize;
  }

  /**
   * Entries of {@code devices} for this worker: how often {@link Session#addReplica()} takes the next
   * one.
   */
  public int replicas() {
    return replicas;
  }

  @Override
  public String toString() {
    return "SessionInfo[id=" + id + ", view=" + view + ", steps=" + steps + ", state=" + state + ", rank=" + rank
        + ", size=" + size + ", localRank=" + localRank + ", localSize=" + localSize + ", replicas=" + replicas + "]";
  }
}

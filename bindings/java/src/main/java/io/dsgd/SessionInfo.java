package io.dsgd;

/**
 * Membership and progress of a session at one moment. Later versions may add components.
 *
 * @param id number of the session, unique in the process
 * @param view number of the view
 * @param steps number of steps that have succeeded, which is the index of the next one
 * @param state whether the session can make steps
 * @param rank 0 .. size - 1
 * @param size number of workers
 * @param localRank rank among the workers on this node
 * @param localSize number of workers on this node
 * @param replicas entries of {@code devices} for this worker: how often {@link
 *     Session#addReplica()} takes the next one
 */
public record SessionInfo(
    long id,
    long view,
    long steps,
    SessionState state,
    int rank,
    int size,
    int localRank,
    int localSize,
    int replicas) {

  /** Called from the native code. */
  SessionInfo(
      long id, long view, long steps, int state, int rank, int size, int localRank, int localSize, int replicas) {
    this(id, view, steps, SessionState.of(state), rank, size, localRank, localSize, replicas);
  }
}

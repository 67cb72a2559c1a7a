package io.dsgd;

/**
 * The result of one step. Later versions may add components.
 *
 * @param step index of the step, from 0
 * @param view number of the view in which it completed
 * @param size workers in that view
 * @param applied whether values were updated; false when all weights were 0, or the step was
 *     {@code skipped}
 * @param allDone whether no data is left: all remaining workers gave weight 0
 * @param stop whether some worker asked to stop before this step
 * @param weight sum of all contribution weights
 * @param gradientNorm L2 norm of the mean gradient before clipping; NaN if all weights were 0, if
 *     {@code nonfinite} skipped the step, or without {@code gradient_norm}, {@code loss_scale} and
 *     the optimizer's {@code clip_norm}
 * @param nonFinite elements of gradients with NaN or infinity, over all workers; 0 if the key {@code
 *     nonfinite} is off
 * @param nonFiniteRank lowest rank that has such elements; -1 if there are none
 * @param skipped whether the step made no update because gradients, or with {@code loss_scale} their
 *     mean, were not finite
 */
public record StepResult( // constructed by the native code
    long step,
    long view,
    int size,
    boolean applied,
    boolean allDone,
    boolean stop,
    double weight,
    double gradientNorm,
    long nonFinite,
    int nonFiniteRank,
    boolean skipped) {}
